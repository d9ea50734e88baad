//! Fleets in one thread: real ledgers, an engine that fails, clocks that differ, instances that are
//! killed. A seed is a history (FLEET-32).
//!
//! `WEIR_FLEET_SEED=7 cargo test -p weir-controlplane fleet::simulator::replay -- --nocapture` runs
//! one and prints it; `WEIR_FLEET_SEEDS=100000` has `histories` run more of them.

mod hostile;
mod instance;
mod model;
mod random;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::units::Time;

use crate::bans::Subject;
use crate::bans::document::BanKey;
use crate::fleet::core::Core;
use crate::fleet::engine::Answer;
use crate::fleet::event::Event;
use crate::fleet::replica::{Item, Replica};
use crate::fleet::stamp::Origin;
use crate::rules::{Entries, Entry, List, ListKey};
use instance::{Edit, Instance};
use model::{Model, Store};
use random::Random;

const START: u64 = 1_795_276_800_000;
/// More turns than any history needs until all is quiet.
const QUIET: usize = 4_000;

/// A fleet, and what was done to it.
struct World {
    random: Random,
    instances: Vec<Instance>,
    /// More than one while the engine has two masters.
    stores: Vec<Store>,
    /// Whose master which one is.
    attached: Vec<usize>,
    /// The answers that are on their way to each.
    answers: Vec<VecDeque<Answer>>,
    /// The engine does not answer.
    is_away: bool,
    /// No answer is late any more.
    is_quick: bool,
    fails: usize,
    now: u64,
    nonces: u64,
    /// What admins were told is done: bans by key, and what was taken out or may have changed
    /// since.
    acknowledged: BTreeSet<BanKey>,
    touched: BTreeSet<BanKey>,
    /// Netblocks of which somebody undid a lift.
    unlifted: BTreeSet<Netblock>,
    /// What the last edit of an entry of a list made of it, of entries that one instance edits.
    listed: BTreeMap<ListKey, Option<Entry>>,
    /// A disk was lost, with what only it had of lists.
    disk_was_lost: bool,
    print: bool,
}

fn client(number: usize) -> Client {
    let last = u8::try_from(number % 4).unwrap();
    let third = u8::try_from(number / 4).unwrap();
    Client::of(IpAddr::from([203, 0, third, last]))
}

fn netblock(client: Client) -> Netblock {
    Netblock::of(client, PrefixLengths::default())
}

impl World {
    fn new(seed: u64, print: bool) -> Self {
        let mut random = Random::new(seed);
        let count = *random.of(&[1, 2, 2, 3, 3, 4, 5, 7, 20]);
        let fails = *random.of(&[0, 0, 20, 5, 2]);
        let instances = (0..count)
            .map(|number| {
                let skew = i64::try_from(random.below(4001)).unwrap() - 2000;
                let held = if random.one_in(3) {
                    old_bans(&mut random)
                } else {
                    Vec::new()
                };
                let mut instance =
                    Instance::new(&format!("edge-{number}"), number as u64, skew, held, START);
                instance.save();
                instance
            })
            .collect();
        Self {
            random,
            instances,
            stores: vec![Store::default()],
            attached: vec![0; count],
            answers: vec![VecDeque::new(); count],
            is_away: false,
            is_quick: false,
            fails,
            now: START,
            nonces: 1000,
            acknowledged: BTreeSet::new(),
            touched: BTreeSet::new(),
            unlifted: BTreeSet::new(),
            listed: BTreeMap::new(),
            disk_was_lost: false,
            print,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.print {
            println!("{:>9} ms  {}", self.now - START, what());
        }
    }

    fn link(&mut self, which: usize) {
        if self.is_away {
            return self.instances[which].cut();
        }
        let is_late = !self.is_quick && self.random.one_in(2);
        let mut engine = Model {
            store: &mut self.stores[self.attached[which]],
            random: &mut self.random,
            fails: self.fails,
            now_ms: self.now,
            answers: &mut self.answers[which],
        };
        self.instances[which].turn(&mut engine, self.now, is_late);
        // An instance was away for seven days.
        for event in self.instances[which].put_aside(self.now) {
            self.say(|| format!("edge-{which}: puts aside {event:?}"));
            match event {
                Event::Entry(entry) => self.touched.extend(entry.key()),
                Event::List(record) => drop(self.listed.remove(&record.key)),
                Event::Lift(_) => {}
            }
        }
    }

    fn step(&mut self) {
        let pauses = [0, 1, 3, 50, 900, 11_000, 1_800_000, 5_000_000, 90_000_000];
        self.now += *self.random.of(&pauses);
        let which = self.random.below(self.instances.len());
        match self.random.below(24) {
            20..=22 => self.edit_list(which),
            23 => self.file_turn(which),
            0..=4 => self.break_limit(which),
            5 => self.admin_ban(which),
            6 => self.lift(which),
            7 => self.edit(which),
            8 => self.fault(which),
            9 => self.instances[which].save(),
            _ => {
                for _ in 0..=self.random.below(2 * self.instances.len()) {
                    let which = self.random.below(self.instances.len());
                    self.link(which);
                }
            }
        }
    }

    fn break_limit(&mut self, which: usize) {
        let client = client(self.random.below(12));
        // The same break is often seen by several instances before one has heard of another.
        let twins = self.random.below(3) * self.random.below(self.instances.len());
        for place in 0..=twins.min(self.instances.len() - 1) {
            let which = (which + place) % self.instances.len();
            let at = self.now + self.random.below(9) as u64;
            let made = self.instances[which].breaks(client, at);
            self.say(|| format!("edge-{which}: {client} breaks a limit: {made:?}"));
        }
    }

    fn admin_ban(&mut self, which: usize) {
        let netblock = netblock(client(self.random.below(12)));
        let seconds = *self.random.of(&[60, 7200, 864_000]);
        let ban = self.instances[which].bans(netblock, seconds, self.now);
        self.acknowledged.insert(BanKey::of(&ban));
        self.say(|| format!("edge-{which}: an admin bans {netblock} for {seconds} s"));
    }

    fn lift(&mut self, which: usize) {
        let client = client(self.random.below(12));
        let subject = if self.random.one_in(2) {
            Subject::Client(client)
        } else {
            Subject::Netblock(netblock(client))
        };
        let lifted = self.instances[which].lifts(subject, self.now);
        self.say(|| format!("edge-{which}: an admin lifts {subject:?}: {lifted}"));
    }

    fn edit(&mut self, which: usize) {
        let keys: Vec<BanKey> = self.instances[which]
            .ledger
            .after(None)
            .map(|(key, _)| *key)
            .collect();
        if keys.is_empty() {
            return;
        }
        let key = *self.random.of(&keys);
        let edit = match self.random.below(4) {
            0 => Edit::Permanent,
            1 => Edit::Unlift,
            2 => Edit::TakeOut,
            _ => Edit::Reason(format!("reason {}", self.random.below(9))),
        };
        if matches!(edit, Edit::TakeOut) {
            self.touched.insert(key);
        }
        // Whoever has a ban begin again undoes a lift, too.
        if matches!(edit, Edit::Unlift | Edit::Permanent) {
            self.unlifted.insert(key.netblock);
        }
        self.instances[which].edits(key, &edit, self.now);
        self.say(|| {
            format!(
                "edge-{which}: edits {key} of {:?}: {edit:?}",
                key.ban_started
            )
        });
    }

    /// Somebody edits lists.json. Some entries only one instance edits.
    fn edit_list(&mut self, which: usize) {
        let own = self.random.one_in(2);
        // Four clients are one netblock.
        let place = if own {
            100 + 4 * which
        } else {
            self.random.below(4)
        };
        let netblock = Netblock::of(client(place), PrefixLengths::default());
        let list = *self.random.of(&[List::Allow, List::Deny]);
        let key = ListKey { list, netblock };
        let entry = (!self.random.one_in(3)).then(|| Entry {
            until: self.random.one_in(4).then(|| Time(self.now + 3_600_000)),
            comment: Some(format!("{}", self.random.below(5))),
            force: false,
        });
        if own {
            self.listed.insert(key, entry.clone());
        }
        self.say(|| format!("edge-{which}: edits {key:?} of lists.json: {entry:?}"));
        self.instances[which].edits_list(key, entry);
    }

    /// The file is written and heard; or written, and then comes a kill.
    fn file_turn(&mut self, which: usize) {
        if self.random.one_in(2) {
            self.instances[which].file_turn(self.now);
        } else {
            self.instances[which].write_file();
            self.restart(which, false);
        }
    }

    fn fault(&mut self, which: usize) {
        match self.random.below(8) {
            0 => self.is_away = true,
            1 => self.is_away = false,
            2 => {
                let batches = self.random.below(6);
                for store in &mut self.stores {
                    store.roll_back(batches);
                }
                (self.instances.iter_mut()).for_each(Instance::cut);
                self.say(|| format!("the engine fails over and has lost {batches} batches"));
            }
            3 => {
                self.stores
                    .iter_mut()
                    .for_each(|store| *store = Store::default());
                (self.instances.iter_mut()).for_each(Instance::cut);
                self.say(|| "the engine starts again, empty".to_owned());
            }
            4 => self.two_masters(),
            5 => {
                let lost = self.random.one_in(4) && !self.acknowledged_by_one();
                self.restart(which, lost);
            }
            6 => self.instances[which].skew_ms += self.random.below(1000) as i64 - 500,
            _ => {
                let mut engine = Model {
                    store: &mut self.stores[self.attached[which]],
                    random: &mut self.random,
                    fails: 0,
                    now_ms: self.now,
                    answers: &mut self.answers[which],
                };
                self.instances[which].put_snapshot(&mut engine);
            }
        }
    }

    /// A disk is lost only where nothing was acknowledged: what one disk alone held is gone with
    /// it.
    fn acknowledged_by_one(&self) -> bool {
        !self.acknowledged.is_empty()
            || self
                .instances
                .iter()
                .any(|instance| !instance.core.is_in_step())
    }

    fn restart(&mut self, which: usize, disk_is_lost: bool) {
        self.nonces += 1;
        self.disk_was_lost |= disk_is_lost;
        self.instances[which].restart(self.nonces, self.now, disk_is_lost);
        self.say(|| format!("edge-{which}: killed, and started again (disk lost: {disk_is_lost})"));
    }

    /// A network parts the engine, or comes together again: then one side is thrown away.
    fn two_masters(&mut self) {
        if self.stores.len() > 1 {
            let stays = self.random.below(2);
            self.stores = vec![self.stores[stays].clone()];
            self.attached.fill(0);
            self.say(|| format!("one master again: {stays} stays"));
        } else {
            self.stores.push(self.stores[0].clone());
            for attached in &mut self.attached {
                *attached = self.random.below(2);
            }
            self.say(|| format!("two masters: {:?}", self.attached));
        }
        (self.instances.iter_mut()).for_each(Instance::cut);
    }

    /// Everything works again, and nothing more happens.
    fn settle(&mut self) {
        if self.stores.len() > 1 {
            self.two_masters();
        }
        (self.is_away, self.is_quick) = (false, true);
        self.fails = 0;
        for _ in 0..QUIET {
            for which in 0..self.instances.len() {
                self.link(which);
            }
            let tip = |instance: &Instance| (instance.core.is_in_step(), instance.core.cursor());
            let first = tip(&self.instances[0]);
            // An instance reads its own batch at its next turn: equal cursors are not enough.
            let is_read = !self.stores[0].has_behind(first.1);
            let are_alike = (self.instances.iter())
                .all(|instance| tip(instance) == first && instance.is_file_quiet(self.now));
            if first.0 && is_read && are_alike {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn check(&mut self) {
        self.settle();
        // A clock that is behind may find a ban active that is over elsewhere.
        let later = self.now + 10_000;
        let first: Vec<Arc<Ban>> = self.instances[0].ledger.all();
        for instance in &self.instances {
            let name = &instance.name;
            // I1: all ledgers and records alike.
            assert_eq!(first, instance.ledger.all(), "I1: the ledger of {name}");
            let digest = self.instances[0].core.replica().digest(later);
            assert_eq!(
                digest,
                instance.core.replica().digest(later),
                "I1: the digest of {name}"
            );
            // The ledger is what the replica says.
            let replica = instance.core.replica();
            let said: Vec<_> = replica
                .bans()
                .map(|(key, ban)| (*key, Arc::clone(ban)))
                .collect();
            let held: Vec<_> = (instance.ledger.after(None))
                .map(|(key, ban)| (*key, Arc::clone(ban)))
                .collect();
            assert_eq!(said, held, "I1: ledger and replica of {name}");
            // I9: nothing waits for ever.
            assert_eq!(instance.core.waiting(), 0, "I9: {name}");
        }
        self.check_lists();
        self.check_admins();
        self.check_lifts();
        self.check_order();
    }

    /// I1, I2 of lists: all files are alike, and hold the last edit of each entry.
    fn check_lists(&self) {
        // Clocks differ: what ends in this moment has ended at some.
        let holds = |entry: &Entry| !entry.has_ended(self.now + 10_000);
        let held = |instance: &Instance| -> Entries {
            let entries = instance.file.entries.iter();
            let entries = entries.filter(|(_, entry)| holds(entry));
            entries.map(|(key, entry)| (*key, entry.clone())).collect()
        };
        let first = held(&self.instances[0]);
        for instance in &self.instances {
            let name = &instance.name;
            assert_eq!(held(instance), first, "I1: lists.json of {name}");
            for key in instance.core.list_keys() {
                let said = instance.core.listed(key, self.now + 10_000);
                assert_eq!(said, first.get(&key), "I1: {key:?} at {name}");
            }
        }
        for (key, entry) in self.listed.iter().filter(|_| !self.disk_was_lost) {
            let entry = entry.as_ref().filter(|entry| holds(entry));
            assert_eq!(first.get(key), entry, "I2: {key:?}");
        }
    }

    /// I2: nothing that an admin was told is missing.
    fn check_admins(&self) {
        for key in self.acknowledged.difference(&self.touched) {
            let held = self.instances[0].ledger.ban(*key);
            assert!(
                held.is_some(),
                "I2: the ban of {key} of {:?}",
                key.ban_started
            );
        }
    }

    /// I3: no ban that is older than a lift that covers it is active.
    fn check_lifts(&self) {
        let replica = self.instances[0].core.replica();
        let events = || replica.items().filter_map(|item| replica.event(&item));
        for lift in events() {
            let Event::Lift(lift) = lift else { continue };
            for entry in replica.entries() {
                let active = entry.ban().is_some_and(|ban| ban.is_active(lift.at.0));
                let covers = lift.covers(entry.id.netblock) && entry.made < lift.stamp;
                let undone = self.unlifted.contains(&entry.id.netblock);
                assert!(
                    !(active && covers && !undone),
                    "I3: {entry:?} despite {lift:?}"
                );
            }
        }
    }

    /// I1: whoever is told the same in another order, and twice, knows the same.
    fn check_order(&mut self) {
        let replica = self.instances[0].core.replica();
        let mut events: Vec<Event> = replica
            .items()
            .filter_map(|item| replica.event(&item))
            .collect();
        for place in (1..events.len()).rev() {
            events.swap(place, self.random.below(place + 1));
        }
        let joiner = Origin::new("joiner", 7).unwrap();
        let mut other = Replica::new(joiner);
        let now = self.now + 100_000;
        for event in events.iter().chain(events.iter().take(events.len() / 3)) {
            other.join(event, now).unwrap();
        }
        let items = |replica: &Replica| -> Vec<(Item, Event)> {
            (replica.items())
                .map(|item| (item.clone(), replica.event(&item).unwrap()))
                .collect()
        };
        assert_eq!(items(&other), items(replica), "I1: a joiner");
        assert!(
            other.bans().eq(replica.bans()),
            "I1: the ledger of a joiner"
        );
    }
}

/// Bans of a time before there was a fleet.
fn old_bans(random: &mut Random) -> Vec<Arc<Ban>> {
    let mut old = Instance::new("old", 1, 0, Vec::new(), START - 100_000_000);
    for _ in 0..random.below(6) {
        let client = client(random.below(12));
        let at = START - 90_000_000 + random.next() % 80_000_000;
        old.breaks(client, at);
        if random.one_in(3) {
            old.lifts(Subject::Client(client), at + 5);
        }
    }
    old.ledger.all()
}

fn history(seed: u64, print: bool) -> usize {
    let mut world = World::new(seed, print);
    let steps = 10 + world.random.below(110);
    for _ in 0..steps {
        world.step();
    }
    world.check();
    world.stores[0].len()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// FLEET-32, FLEET-13, FLEET-15, FLEET-16, FLEET-6: a thousand histories; after each of them
/// nothing that was acknowledged is missing, no ban that was lifted is active, and all instances
/// are alike.
#[test]
fn histories() {
    let count = number("WEIR_FLEET_SEEDS").unwrap_or(1000);
    let first = number("WEIR_FLEET_FIRST").unwrap_or(0);
    let mut batches = 0;
    for seed in first..first + count {
        match catch_unwind(AssertUnwindSafe(|| history(seed, false))) {
            Ok(logged) => batches += logged,
            Err(_) => panic!(
                "WEIR_FLEET_SEED={seed} cargo test -p weir-controlplane --lib fleet::simulator::replay -- --nocapture"
            ),
        }
    }
    println!(
        "seeds {first} to {}: {batches} batches in the logs",
        first + count - 1
    );
}

/// FLEET-32: one history by itself, printed.
#[test]
fn replay() {
    history(number("WEIR_FLEET_SEED").unwrap_or(7), true);
}

/// Instances that hold nothing and whose clocks are right; their nonces count from 1.
fn started<const N: usize>(names: [&str; N]) -> [Instance; N] {
    let mut nonce = 0;
    names.map(|name| {
        nonce += 1;
        Instance::new(name, nonce, 0, Vec::new(), START)
    })
}

/// One turn of an instance with an engine that obeys every call and answers it.
#[track_caller]
fn turn(instance: &mut Instance, store: &mut Store, now_ms: u64, is_late: bool) {
    let mut engine = Model {
        store,
        // Without failures nothing is drawn that matters.
        random: &mut Random::new(1),
        fails: 0,
        now_ms,
        answers: &mut VecDeque::new(),
    };
    assert!(instance.turn(&mut engine, now_ms, is_late));
}

/// FLEET-15: two masters give two batches the same place in their logs. Whoever has read the one
/// and meets the log that has the other reads that log from its beginning (seed 219).
#[test]
fn a_place_alone_names_no_batch() {
    let [mut here, mut there, mut reader] = started(["here", "there", "reader"]);
    let mut stays = Store::default();
    for instance in [&mut here, &mut there, &mut reader] {
        turn(instance, &mut stays, START, false);
    }
    let mut goes = stays.clone();
    let ban = here.bans(netblock(client(1)), 7200, START);
    there.bans(netblock(client(5)), 7200, START);
    turn(&mut here, &mut stays, START, false);
    turn(&mut there, &mut goes, START, false);
    turn(&mut reader, &mut goes, START, false);
    reader.cut();
    turn(&mut reader, &mut stays, START, false);
    assert!(reader.ledger.ban(BanKey::of(&ban)).is_some());
}

/// FLEET-15: two masters have two batches of one number of one instance: one took the batch over a
/// connection that the instance has given up. The instance does not take that one for the other,
/// which goes with its master (seed 2781).
#[test]
fn a_number_alone_names_no_batch() {
    let [mut here, mut reader] = started(["here", "reader"]);
    let mut stays = Store::default();
    turn(&mut here, &mut stays, START, false);
    let mut goes = stays.clone();
    here.bans(netblock(client(1)), 7200, START);
    turn(&mut here, &mut stays, START, true);
    here.cut();
    let ban = here.bans(netblock(client(5)), 7200, START);
    turn(&mut here, &mut goes, START, false);
    here.cut();
    for _ in 0..3 {
        turn(&mut here, &mut stays, START, false);
    }
    turn(&mut reader, &mut stays, START, false);
    assert!(reader.ledger.ban(BanKey::of(&ban)).is_some());
}

/// FLEET-15: two masters have, at one place, two batches of one number with the same events, behind
/// others that differ. Each is sealed with a salt of its own (FLEET-25): whoever has read the one
/// does not take the other for it (seed 97165).
#[test]
fn the_same_events_sealed_twice_are_two_batches() {
    let [mut here, mut there, mut twice, mut reader] =
        started(["here", "there", "twice", "reader"]);
    let mut stays = Store::default();
    // As many as are read at once: who reads them anew sends before it has read the rest.
    for number in 0..instance::READ as u64 {
        here.bans(netblock(client(1)), 60, START + number);
        turn(&mut here, &mut stays, START, false);
    }
    for instance in [&mut there, &mut twice, &mut reader] {
        turn(instance, &mut stays, START, false);
    }
    let mut goes = stays.clone();
    let ban = here.bans(netblock(client(5)), 7200, START);
    there.bans(netblock(client(9)), 7200, START);
    twice.bans(netblock(client(1)), 7200, START + 100);
    turn(&mut here, &mut stays, START, false);
    turn(&mut there, &mut goes, START, false);
    turn(&mut twice, &mut goes, START, true);
    turn(&mut reader, &mut goes, START, false);
    for instance in [&mut twice, &mut reader] {
        instance.cut();
        turn(instance, &mut stays, START, false);
    }
    turn(&mut reader, &mut stays, START, false);
    assert!(reader.ledger.ban(BanKey::of(&ban)).is_some());
}

/// FLEET-15, FLEET-23: an instance reads, of a master that goes, what was made long before its
/// point, and is killed. It does not go on from that point: what it has read is sent (seed 35961).
#[test]
fn what_is_read_late_is_sent_after_a_restart() {
    let [mut here, mut reader, mut other] = started(["here", "reader", "other"]);
    let made = here.breaks(client(1), START).unwrap();
    let now = START + 120_000;
    let mut stays = Store::default();
    reader.bans(netblock(client(5)), 7200, now);
    for _ in 0..2 {
        turn(&mut reader, &mut stays, now, false);
    }
    reader.save();
    let mut goes = stays.clone();
    turn(&mut here, &mut goes, now, false);
    turn(&mut reader, &mut goes, now, false);
    // It is saved while not all of its own is in the log: that is no point.
    reader.bans(netblock(client(9)), 7200, now);
    reader.restart(4, now, false);
    for instance in [&mut reader, &mut other] {
        turn(instance, &mut stays, now, false);
    }
    assert!(other.ledger.ban(made).is_some());
}

/// FLEET-12: N instances ban a netblock at once, before one has heard of another: that is one
/// entry, and the next ban is the next step of the escalation.
#[test]
fn twins_are_one_step() {
    const HOUR: u64 = 3_600_000;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let count = 2 + random.below(9);
        // In the middle of a slot: bans on both sides of a border are two entries, and one step.
        let mut now = START + 5_000;
        let mut store = Store::default();
        let mut instances: Vec<Instance> = (0..count)
            .map(|number| {
                let skew = i64::try_from(random.below(2001)).unwrap() - 1000;
                Instance::new(
                    &format!("edge-{number}"),
                    number as u64,
                    skew,
                    Vec::new(),
                    START,
                )
            })
            .collect();
        for round in 0..4_u32 {
            for instance in &mut instances {
                let made = instance.breaks(client(1), now + random.below(9) as u64);
                assert!(made.is_some(), "seed {seed} round {round}");
            }
            for _ in 0..6 {
                for instance in &mut instances {
                    turn(instance, &mut store, now, false);
                }
            }
            let length = HOUR * 3_u64.pow(round);
            for instance in &instances {
                let bans = instance.ledger.all();
                assert_eq!(
                    bans.len(),
                    round as usize + 1,
                    "seed {seed} {}",
                    instance.name
                );
                assert_eq!(bans.last().unwrap().length_ms(), length, "seed {seed}");
                assert_eq!(bans, instances[0].ledger.all());
            }
            now += length + 60_000;
            now -= now % 10_000;
            now += 5_000;
        }
    }
}

/// FLEET-17: what an edit takes out stays out, whoever still has it; put in again it is there
/// again.
#[test]
fn what_is_taken_out_stays_out() {
    let mut store = Store::default();
    let [mut here] = started(["here"]);
    let ban = here.bans(netblock(client(1)), 7200, START);
    let key = BanKey::of(&ban);
    // A copy of the time before.
    let mut late = Instance::new("late", 2, 0, here.ledger.all(), START);
    turn(&mut here, &mut store, START, false);
    here.edits(key, &Edit::TakeOut, START + 1000);
    for _ in 0..3 {
        turn(&mut here, &mut store, START + 1000, false);
    }
    for _ in 0..3 {
        turn(&mut late, &mut store, START + 2000, false);
        turn(&mut here, &mut store, START + 2000, false);
    }
    assert_eq!(late.ledger.len(), 0);
    assert_eq!(here.ledger.len(), 0);
    let again = late.bans(netblock(client(1)), 60, START + 3000);
    for _ in 0..3 {
        turn(&mut late, &mut store, START + 3000, false);
        turn(&mut here, &mut store, START + 3000, false);
    }
    assert!(here.ledger.ban(BanKey::of(&again)).is_some());
}

/// FLEET-17: it stays out for seven days, and not for ever.
#[test]
fn what_is_taken_out_is_remembered_for_seven_days() {
    const DAY: u64 = 86_400_000;
    for (age, held) in [(6 * DAY, 0), (7 * DAY, 0), (7 * DAY + 2, 1)] {
        let [mut here] = started(["here"]);
        let ban = here.bans(netblock(client(1)), 7200, START);
        here.edits(BanKey::of(&ban), &Edit::TakeOut, START);
        let now = START + age;
        here.core.forget_old(now);
        let mut late = Instance::new("late", 2, 0, vec![ban], START);
        let mut store = Store::default();
        for _ in 0..3 {
            for instance in [&mut here, &mut late] {
                turn(instance, &mut store, now, false);
            }
        }
        let both = [&here, &late].map(|instance| instance.ledger.len());
        assert_eq!(both, [held; 2], "after {age} ms");
    }
}

/// FLEET-31: a member of an event that this version does not know is kept, and passed on.
#[test]
fn members_of_a_newer_version_are_kept() {
    let (mut core, _) = Core::new(Origin::new("a", 1).unwrap(), &[]);
    let [mut here] = started(["here"]);
    here.bans(netblock(client(1)), 60, START);
    let replica = here.core.replica();
    let event = replica
        .items()
        .find_map(|item| replica.event(&item))
        .unwrap();
    let mut text = serde_json::to_value(&event).unwrap();
    text["entry"]["colour"] = "blue".into();
    let batch = serde_json::to_vec(&vec![text]).unwrap();
    core.take(crate::fleet::event::read(&batch), START);
    let held = core.replica();
    let event = held.items().find_map(|item| held.event(&item)).unwrap();
    assert_eq!(
        serde_json::to_value(&event).unwrap()["entry"]["colour"],
        "blue"
    );
}
