//! Counts of the fleet in the control loop.

use super::facts::Told;
use super::part::Fleet;
use super::sharing::Sharing;

impl Fleet {
    /// The number of live instances, this one included.
    pub(crate) fn instances(&self) -> u64 {
        self.others.live() as u64 + 1
    }

    /// Sets whether the counts of others are used.
    pub(crate) fn heed(&mut self, heeds: bool) -> Option<Told> {
        self.sharing.as_mut()?.heed(heeds)
    }

    /// Has all counts sent, and none after that.
    pub(crate) fn rest_counting(&self) {
        self.sharing.iter().for_each(Sharing::rest);
    }
}
