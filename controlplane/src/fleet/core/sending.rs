//! Sends batches and handles their answers. A few batches are under way at once; items of batches
//! that the engine did not take are sent again.

use super::{Batch, Core, Item, MOST_UNDER_WAY, UnderWay};
use crate::fleet::engine::Welcome;
use crate::fleet::event::{self, Event};

/// While so many bytes are under way nothing more is sent: on a slow network full batches would
/// delay each other beyond the time-out.
const MOST_BYTES_UNDER_WAY: usize = 64 * 1024;

impl Core {
    /// The next batch to append; none while [`MOST_UNDER_WAY`] batches or [`MOST_BYTES_UNDER_WAY`]
    /// are under way. `is_kept` says whether fleet.json holds a change.
    pub fn next_batch(&mut self, is_kept: impl Fn(u64) -> bool) -> Option<Batch> {
        let under_way = self.in_flight.len();
        let bytes: usize = self.in_flight.iter().map(|sent| sent.bytes).sum();
        let is_enough = under_way >= MOST_UNDER_WAY || bytes >= MOST_BYTES_UNDER_WAY;
        if is_enough || self.has_lost || self.generation.is_none() {
            return None;
        }
        let kept = self.unkept.extract_if(.., |_, change| is_kept(*change));
        let kept: Vec<Item> = kept.map(|(item, _)| item).collect();
        kept.into_iter().for_each(|item| self.send(item));
        // Dropped items are not sent, and edited ones wait until fleet.json holds them.
        while let Some(item) = self.queue.front()
            && self.to_send(item).is_none()
        {
            self.unqueue();
        }
        if self.queue.is_empty() {
            return None;
        }
        let events = self.queue.iter().map_while(|item| self.to_send(item));
        let (bytes, count) = event::write(events);
        let items: Vec<Item> = (0..count).filter_map(|_| self.unqueue()).collect();
        let seq = self.acked + under_way as u64 + 1;
        self.in_flight.push_back(UnderWay {
            seq,
            items,
            bytes: bytes.len(),
        });
        Some(Batch { seq, bytes })
    }

    fn to_send(&self, item: &Item) -> Option<Event> {
        let is_kept = !self.unkept.contains_key(item);
        is_kept.then(|| self.replica.event(item)).flatten()
    }

    fn unqueue(&mut self) -> Option<Item> {
        let item = self.queue.pop_front()?;
        self.queued.remove(&item);
        Some(item)
    }

    /// Takes the answer to the oldest append: the number of the last batch that the engine has.
    pub fn appended(&mut self, seq: u64, last: u64) {
        let oldest = self.in_flight.pop_front_if(|sent| sent.seq == seq);
        let Some(UnderWay { mut items, .. }) = oldest else {
            return;
        };
        if last == seq && !self.has_lost {
            return self.taken(seq, &items);
        }
        // The engine has lost acknowledged batches, and refuses the later numbers.
        (self.acked, self.acked_by) = (last, None);
        if !self.has_lost {
            for behind in &mut self.in_flight {
                items.append(&mut behind.items);
            }
            self.send_first(items);
            self.resync();
        }
        self.has_lost = self.is_under_way();
    }

    fn taken(&mut self, seq: u64, items: &[Item]) {
        (self.acked, self.acked_by) = (seq, Some(self.hello));
        self.counts.sent += items.len() as u64;
    }

    /// After a lost connection: the engine tells the last batch of this origin. Batches of that
    /// connection up to it were taken; the others are sent again.
    pub(super) fn settle_in_flight(&mut self, welcome: &Welcome) {
        let last = welcome.last;
        let in_flight = std::mem::take(&mut self.in_flight);
        let knows = in_flight.back().is_some_and(|sent| last <= sent.seq)
            && welcome.last_by == Some(self.hello);
        let mut again = Vec::new();
        for sent in in_flight {
            if knows && sent.seq <= last {
                self.taken(sent.seq, &sent.items);
            } else {
                again.extend(sent.items);
            }
        }
        self.send_first(again);
        self.has_lost = false;
    }

    pub(super) fn send(&mut self, item: Item) {
        if self.queued.insert(item.clone()) {
            self.queue.push_back(item);
        }
    }

    fn send_first(&mut self, items: Vec<Item>) {
        for item in items.into_iter().rev() {
            if self.queued.insert(item.clone()) {
                self.queue.push_front(item);
            }
        }
    }
}

#[cfg(test)]
mod tests;
