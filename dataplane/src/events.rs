//! What goes up: breaks, each at once on a channel of its own; log records, in batches. Nothing here blocks; what does
//! not fit is counted.

use std::cell::RefCell;
use std::sync::Arc;

use crossbeam_channel::Sender;
use weir_shared::event::Break;
use weir_shared::record::{Batch, Record};

use crate::counters::Counters;

/// Records a worker gathers before it sends them. A send wakes nobody: the writer looks on a tick of its own.
const BATCH: usize = 64;

/// One worker's way up.
pub struct Events {
    breaks: Sender<Break>,
    records: Option<Sender<Batch>>,
    gathered: RefCell<Batch>,
    counters: Arc<Counters>,
}

impl Events {
    /// `records` is none while `WAF_LOG_REQUESTS` is `off`.
    pub fn new(
        breaks: Sender<Break>,
        records: Option<Sender<Batch>>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            breaks,
            records,
            gathered: RefCell::default(),
            counters,
        }
    }

    /// Whether anybody wants records.
    pub fn wants_records(&self) -> bool {
        self.records.is_some()
    }

    /// Reports a broken limit; false if the control plane is behind (LIMIT-6).
    pub fn report(&self, broken: Break) -> bool {
        let sent = self.breaks.try_send(broken).is_ok();
        if !sent {
            self.counters.break_dropped();
        }
        sent
    }

    /// Gathers a record; sends the batch once it is full.
    pub fn record(&self, record: Record) {
        let full = {
            let mut gathered = self.gathered.borrow_mut();
            gathered.push(record);
            gathered.len() >= BATCH
        };
        if full {
            self.flush();
        }
    }

    /// Sends what was gathered. Called on every tick of the worker, so that a line is never long in coming.
    pub fn flush(&self) {
        let Some(records) = &self.records else { return };
        let mut gathered = self.gathered.borrow_mut();
        if gathered.is_empty() {
            return;
        }
        let batch = std::mem::replace(&mut *gathered, Vec::with_capacity(BATCH));
        if let Err(refused) = records.try_send(batch) {
            self.counters.records_dropped(refused.into_inner().len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_shared::totals::Totals;
    use weir_shared::verdict::LimitKind;

    /// LIMIT-6: a full channel is told at once and counted, nothing waits.
    #[test]
    fn a_full_channel_is_counted() {
        let (breaks, _kept) = crossbeam_channel::bounded(1);
        let counters = Arc::new(Counters::default());
        let events = Events::new(breaks, None, Arc::clone(&counters));
        let broken = Break {
            client: weir_shared::client::Client::V4(1),
            limit: LimitKind::Minute,
            limit_value: 1,
            limit_percent: 100,
            at_ms: 0,
            request: Default::default(),
        };
        assert!(events.report(broken.clone()));
        assert!(!events.report(broken));
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        assert_eq!(totals.breaks_dropped, 1);
    }
}
