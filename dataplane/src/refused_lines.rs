//! Lines of the request log for clients that are refused without end: so many a second of one
//! netblock, all workers together. The others are counted, and told once a second (LOG-6). Pure:
//! time is an argument.
//!
//! Without it a denied client writes eleven bytes of log for each byte that it sends, and the lines
//! of everybody else find the queue full.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use weir_shared::clock::Now;
use weir_shared::netblock::Netblock;
use weir_shared::record::LeftOut;
use weir_shared::verdict::Action;

/// Parts of the table, each with a lock of its own: two netblocks seldom share one.
const SHARDS: usize = 16;
/// Netblocks that a part tells apart in one second. Those beyond share one rate, and their lines
/// are counted together: the table is bounded, and so are the lines of many netblocks.
const NETBLOCKS: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// The lines of all netblocks whose clients are refused.
#[derive(Default)]
pub struct RefusedLines {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// The second up to which the left out were told. Relaxed: it decides for itself alone.
    told: AtomicU64,
}

/// A part of the table.
#[derive(Default)]
struct Shard {
    /// The second that `logged` is of.
    second: u64,
    /// At most [`NETBLOCKS`].
    netblocks: Vec<(Netblock, Lines)>,
    /// Those of all other netblocks.
    others: Lines,
}

/// The lines of one netblock.
#[derive(Clone, Copy, Default)]
struct Lines {
    /// Those of this second that are in the log.
    logged: u32,
    /// Those that are not and were not told of, by [`Action::index`].
    left_out: [u64; Action::ALL.len()],
}

impl Lines {
    /// Whether one more is logged; it is counted either way.
    fn take(&mut self, action: Action, rate: u32) -> bool {
        let is_logged = self.logged < rate;
        if is_logged {
            self.logged += 1;
        } else if let Some(count) = self.left_out.get_mut(action.index()) {
            *count += 1;
        }
        is_logged
    }

    fn has_left_out(&self) -> bool {
        self.left_out.iter().any(|count| *count > 0)
    }

    /// Tells of those that were left out, for each action.
    fn tell(&mut self, at_ms: u64, netblock: Option<Netblock>, tell: &mut impl FnMut(LeftOut)) {
        let left_out = std::mem::take(&mut self.left_out);
        for (action, count) in Action::ALL.into_iter().zip(left_out) {
            if count > 0 {
                tell(LeftOut {
                    at_ms,
                    netblock,
                    action,
                    count,
                });
            }
        }
    }
}

impl Shard {
    /// Begins a new second. Who was left out stays until it is told.
    fn turn(&mut self, second: u64) {
        // The clock of another worker may be a tick behind.
        if second <= self.second {
            return;
        }
        self.second = second;
        self.others.logged = 0;
        self.netblocks.retain_mut(|(_, lines)| {
            lines.logged = 0;
            lines.has_left_out()
        });
    }

    fn lines_of(&mut self, netblock: Netblock) -> &mut Lines {
        let found = self
            .netblocks
            .iter()
            .position(|(held, _)| *held == netblock);
        let at = found.unwrap_or(self.netblocks.len());
        if found.is_none() && at < NETBLOCKS {
            self.netblocks.push((netblock, Lines::default()));
        }
        let held = self.netblocks.get_mut(at);
        held.map_or(&mut self.others, |(_, lines)| lines)
    }
}

impl RefusedLines {
    /// Whether a request of this netblock has a line of its own; without one it is counted. `rate`
    /// is lines a second.
    pub fn is_logged(&self, netblock: Netblock, action: Action, rate: u32, now: Now) -> bool {
        let hash = self.hasher.hash_one(netblock);
        let at = (hash % SHARDS as u64) as usize;
        let Some(shard) = self.shards.get(at) else {
            return true;
        };
        let mut shard = lock(shard);
        shard.turn(now.mono_ns / SECOND_NS);
        shard.lines_of(netblock).take(action, rate)
    }

    /// Tells of those that were left out, once a second, whichever worker asks first.
    pub fn tell(&self, now: Now, tell: impl FnMut(LeftOut)) {
        let second = now.mono_ns / SECOND_NS;
        if self.told.fetch_max(second, Relaxed) < second {
            self.tell_all(now, tell);
        }
    }

    /// The same at once: nothing follows.
    pub fn tell_all(&self, now: Now, mut tell: impl FnMut(LeftOut)) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (netblock, lines) in &mut shard.netblocks {
                lines.tell(now.wall_ms, Some(*netblock), &mut tell);
            }
            shard.others.tell(now.wall_ms, None, &mut tell);
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Nothing panics while it is held.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Now {
        Now {
            wall_ms: ms,
            mono_ns: ms * 1_000_000,
        }
    }

    fn netblock(number: usize) -> Netblock {
        let [.., high, low] = u32::try_from(number).unwrap().to_be_bytes();
        format!("198.{high}.{low}.0/24").parse().unwrap()
    }

    fn told(lines: &RefusedLines, now: Now) -> Vec<(Option<Netblock>, Action, u64)> {
        let mut told = Vec::new();
        lines.tell(now, |left_out| {
            assert_eq!(left_out.at_ms, now.wall_ms);
            told.push((left_out.netblock, left_out.action, left_out.count));
        });
        told
    }

    /// LOG-6: of a netblock so many lines a second are logged, the others are counted by action and
    /// told once, in the next second; another netblock has its own.
    #[test]
    fn a_netblock_has_so_many_lines_a_second() {
        let lines = RefusedLines::default();
        let logged = |number, action, ms| {
            let is_logged = |_: &usize| lines.is_logged(netblock(number), action, 10, at(ms));
            (0..15).filter(is_logged).count()
        };
        assert_eq!(told(&lines, at(5_000)), []);
        assert_eq!(logged(1, Action::Banned, 5_000), 10);
        assert_eq!(logged(1, Action::DeniedNet, 5_100), 0);
        assert_eq!(logged(2, Action::Banned, 5_200), 10);
        assert_eq!(told(&lines, at(5_999)), [], "the second is not over");
        // The next second has its own lines, told or not; a clock that is a tick behind has none.
        assert_eq!(logged(1, Action::Banned, 6_000), 10);
        assert_eq!(logged(1, Action::Banned, 5_950), 0);
        let mut all = told(&lines, at(6_050));
        all.sort_by_key(|(netblock, action, _)| (*netblock, action.index()));
        let one = Some(netblock(1));
        let two = (Some(netblock(2)), Action::Banned, 5);
        assert_eq!(
            all,
            [(one, Action::DeniedNet, 15), (one, Action::Banned, 25), two]
        );
        assert_eq!(told(&lines, at(6_100)), [], "told once");
        assert_eq!(told(&lines, at(7_000)), []);
        assert!(lines.shards.iter().all(|shard| lock(shard).second <= 6));
    }

    /// LOG-6: every request is logged or counted, whatever comes when; a clock that is a tick
    /// behind gives nobody a second share.
    #[test]
    fn nothing_is_lost() {
        let lines = RefusedLines::default();
        let (mut logged, mut counted) = (0, 0);
        for step in 0..40_000_u64 {
            let ms = 1_000 + step / 8 - (step % 3) * 17;
            let number = (step * step % 7) as usize;
            let action = Action::ALL[(step % 13) as usize];
            logged += u64::from(lines.is_logged(netblock(number), action, 100, at(ms)));
            if step % 50 == 0 {
                lines.tell(at(ms), |left_out| counted += left_out.count);
            }
        }
        lines.tell_all(at(99_000), |left_out| counted += left_out.count);
        assert_eq!(logged + counted, 40_000);
        // Six seconds of seven netblocks at most.
        assert!(logged <= 6 * 7 * 100, "{logged}");
    }

    /// LOG-6: more netblocks than the table tells apart share one rate in each part, and the table
    /// does not grow.
    #[test]
    fn the_table_is_bounded() {
        let lines = RefusedLines::default();
        let mut logged = 0;
        for number in 0..20_000 {
            logged += usize::from(lines.is_logged(netblock(number), Action::Banned, 1, at(0)));
        }
        assert_eq!(logged, SHARDS * (NETBLOCKS + 1));
        let all = told(&lines, at(1_000));
        assert!(all.iter().all(|(netblock, ..)| netblock.is_none()));
        assert_eq!(
            all.iter().map(|(.., count)| count).sum::<u64>(),
            20_000 - logged as u64
        );
        // Nobody of them is kept in the next second.
        let again = (0..20_000)
            .filter(|number| lines.is_logged(netblock(*number), Action::Banned, 1, at(2_000)));
        assert_eq!(again.count(), logged);
        told(&lines, at(3_000));
        for _ in 0..2 {
            for number in 0..SHARDS * 8 {
                assert!(lines.is_logged(netblock(number), Action::Banned, 2, at(4_000)));
            }
        }
    }
}
