//! Gives a start to imported entries that have none of their own: those without one, and those
//! whose start an earlier entry has (CONTROL-9).
//!
//! An earlier import of the same document gave such an entry a start, too. The held ban that equals
//! the entry except for the start is the result of that import: the entry gets its start, so that a
//! second import changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use weir_shared::ban::{Ban, Cause};
use weir_shared::ban_origin::BanOrigin;
use weir_shared::client::Client;
use weir_shared::units::Time;

use crate::bans::document::BanKey;
use crate::bans::starts::{Starts, Whose};

/// The members of a ban without its start and without those that are added later.
#[derive(PartialEq, Eq, Hash)]
struct Likeness<'a> {
    whose: Whose,
    end_ms: u64,
    cause: Cause,
    client: Option<Client>,
    observed: bool,
    reason: &'a str,
}

impl<'a> Likeness<'a> {
    fn of(ban: &'a Ban) -> Self {
        Self {
            whose: (ban.netblock, ban.origin()),
            end_ms: ban.ban_expires.end_ms(),
            cause: ban.cause,
            client: ban.client,
            observed: ban.observed,
            reason: &ban.reason,
        }
    }
}

/// Recognizes bans of other instances of a fleet. An export leaves out the origin of the exporting
/// instance's own bans, so two instances know one ban under two keys. An entry whose own key is not
/// held stands for the held ban of the same netblock, start and kind, unless the document has that
/// one as well.
pub(super) fn know_again(bans: &mut [Arc<Ban>], held: &BTreeMap<BanKey, Arc<Ban>>) {
    let said: HashSet<BanKey> = bans.iter().map(|ban| BanKey::of(ban)).collect();
    let (first, last) = BanOrigin::RANGE;
    for ban in bans {
        let (Some(Time(start)), key) = (ban.ban_started, BanKey::of(ban)) else {
            continue;
        };
        if held.contains_key(&key) {
            continue;
        }
        let at_start =
            BanKey::new(key.netblock, start, first)..=BanKey::new(key.netblock, start, last);
        let mut others = held.range(at_start).map(|(other, _)| other);
        let other = others.find(|other| other.origin.by == key.origin.by && !said.contains(other));
        if let Some(other) = other {
            Arc::make_mut(ban).origin = Some(other.origin);
        }
    }
}

/// Gives every entry a start that no other has. The first entry of a start keeps it. Each other
/// entry with a start gets the next one that is free, or that of a held ban equal to it. An entry
/// without a start gets that of an equal held ban, or the first free one from now on. `held` are
/// the bans of the ledger.
pub(super) fn give_starts(bans: &mut [Arc<Ban>], held: &BTreeMap<BanKey, Arc<Ban>>, now_ms: u64) {
    for (place, start) in starts(bans, held, now_ms) {
        if let Some(ban) = bans.get_mut(place) {
            Arc::make_mut(ban).ban_started = Some(Time(start));
        }
    }
}

/// The positions of the entries without a start of their own, with the starts they get.
fn starts(bans: &[Arc<Ban>], held: &BTreeMap<BanKey, Arc<Ban>>, now_ms: u64) -> Vec<(usize, u64)> {
    let mut starts = Starts::with_capacity(bans.len());
    let (mut repeated, mut bare) = (Vec::new(), Vec::new());
    for (place, ban) in bans.iter().enumerate() {
        match ban.ban_started {
            None => bare.push((place, ban)),
            Some(Time(start)) if starts.take((ban.netblock, ban.origin()), start) => {}
            Some(Time(start)) => repeated.push((place, ban, start)),
        }
    }
    if repeated.is_empty() && bare.is_empty() {
        return Vec::new();
    }
    let mut alike = alike(&repeated, &bare, held, &starts);
    let mut given = Vec::with_capacity(repeated.len() + bare.len());
    for (place, ban, start) in repeated {
        let likeness = Likeness::of(ban);
        let whose = likeness.whose;
        let free = starts.first_free(whose, start, |at_ms| is_held(held, whose, at_ms));
        let own = alike.get_mut(&likeness).and_then(|of_bans| {
            let own = of_bans.range(start..free).next().copied()?;
            of_bans.remove(&own);
            Some(own)
        });
        let own = own.unwrap_or(free);
        starts.take(whose, own);
        given.push((place, own));
    }
    for (place, ban) in bare {
        let likeness = Likeness::of(ban);
        let whose = likeness.whose;
        let own = alike.get_mut(&likeness).and_then(BTreeSet::pop_first);
        let own = own.unwrap_or_else(|| {
            starts.take_free(whose, now_ms, |at_ms| is_held(held, whose, at_ms))
        });
        given.push((place, own));
    }
    given
}

/// The starts of held bans that may equal one of these entries, except starts that an entry has of
/// its own.
fn alike<'a>(
    repeated: &[(usize, &Arc<Ban>, u64)],
    bare: &[(usize, &Arc<Ban>)],
    held: &'a BTreeMap<BanKey, Arc<Ban>>,
    starts: &Starts,
) -> HashMap<Likeness<'a>, BTreeSet<u64>> {
    let repeated = repeated.iter().map(|(_, ban, _)| ban.netblock);
    let netblocks: HashSet<_> = (bare.iter().map(|(_, ban)| ban.netblock))
        .chain(repeated)
        .collect();
    let mut alike = HashMap::new();
    for (key, ban) in held {
        let start = key.ban_started.0;
        if netblocks.contains(&key.netblock) && !starts.is_taken((key.netblock, key.origin), start)
        {
            let of_bans: &mut BTreeSet<u64> = alike.entry(Likeness::of(ban)).or_default();
            of_bans.insert(start);
        }
    }
    alike
}

fn is_held(held: &BTreeMap<BanKey, Arc<Ban>>, (netblock, origin): Whose, at_ms: u64) -> bool {
    held.contains_key(&BanKey::new(netblock, at_ms, origin))
}
