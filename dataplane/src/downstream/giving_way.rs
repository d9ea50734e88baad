//! Which connection gives way where every place is taken: of those that are idle, or whose head has
//! been coming for a second, the oldest of the netblock that has the most connections (CONN-2,
//! CONN-16).

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::{Rc, Weak};

use super::{Downstream, Ending};
use crate::connection_limits::Rank;

impl Downstream {
    /// Since when the connection may be closed for another, if it may.
    pub fn gives_way_since(&self) -> Option<u64> {
        let since = self.deadlines.gives_way_since(self.clock.mono_ns());
        since.filter(|_| self.is_open())
    }

    /// Its place among those that may, if it is one of them; the size of its netblock is looked up
    /// where it is `sized`.
    pub fn rank(&self, sized: bool) -> Option<Rank> {
        let since_ns = self.gives_way_since()?;
        let size = if sized { self.slot.netblock_size() } else { 0 };
        Some(Rank { size, since_ns })
    }

    /// Whether nobody has asked it to end.
    pub fn is_open(&self) -> bool {
        self.ending.get() == Ending::No
    }

    /// Tells others whether it may.
    pub fn tell_whether_it_gives_way(&self) {
        self.slot.set_idle(self.gives_way_since().is_some());
    }
}

/// A connection with the rank that it had when it was looked at.
struct Candidate {
    rank: Rank,
    connection: Weak<Downstream>,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Candidate {}

/// Connections of one worker that may give way.
#[derive(Default)]
pub struct Candidates(BinaryHeap<Candidate>);

impl Candidates {
    /// Those of these connections that may, in place of all that were known.
    pub fn look(&mut self, open: &[Weak<Downstream>]) {
        let candidate = |connection: &Weak<Downstream>| {
            let rank = connection.upgrade()?.rank(true)?;
            let connection = Weak::clone(connection);
            Some(Candidate { rank, connection })
        };
        self.0 = open.iter().filter_map(candidate).collect();
    }

    /// Takes the one that goes first.
    pub fn next(&mut self) -> Option<(Rank, Rc<Downstream>)> {
        while let Some(Candidate { rank, connection }) = self.0.pop() {
            let Some(held) = connection.upgrade() else {
                continue;
            };
            // It may have been used meanwhile; or others of its netblock are gone, and another
            // netblock has more now.
            match held.rank(true) {
                Some(now) if now.since_ns != rank.since_ns => {}
                Some(now) if now.size < rank.size => {
                    let rank = now;
                    self.0.push(Candidate { rank, connection });
                }
                Some(now) => return Some((now, held)),
                None => {}
            }
        }
        None
    }

    /// Puts one back that was taken.
    pub fn put_back(&mut self, rank: Rank, connection: &Rc<Downstream>) {
        let connection = Rc::downgrade(connection);
        self.0.push(Candidate { rank, connection });
    }
}
