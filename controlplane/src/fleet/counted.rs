//! What the control loop does about counts.

use super::facts::Told;
use super::part::Fleet;
use super::sharing::Sharing;

impl Fleet {
    /// Instances that live, this one included.
    pub(crate) fn instances(&self) -> u64 {
        self.others.live() as u64 + 1
    }

    /// What others count holds, or does not any more.
    pub(crate) fn heed(&mut self, heeds: bool) -> Option<Told> {
        self.sharing.as_mut()?.heed(heeds)
    }

    /// All that was counted is sent; nothing more is.
    pub(crate) fn rest_counting(&self) {
        self.sharing.iter().for_each(Sharing::rest);
    }
}
