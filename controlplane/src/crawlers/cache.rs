//! DNS answers about addresses, each kept for its lifetime; beyond the bound the oldest answer is
//! dropped (LOOKUP-2). Pure: time is an argument, nanoseconds of the monotonic clock.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use weir_shared::proof::NamesAnswer;

/// Addresses that are kept.
const MAX_ADDRESSES: usize = 20_000;

/// The answers.
#[derive(Default)]
pub(super) struct Cache {
    /// Each answer with its number in the order of arrival.
    answers: HashMap<IpAddr, (u64, NamesAnswer)>,
    order: BTreeMap<u64, IpAddr>,
    next: u64,
}

impl Cache {
    /// The answer about an address for these suffixes. An expired answer is dropped.
    pub(super) fn fresh(
        &mut self,
        address: IpAddr,
        suffixes: u64,
        now_ns: u64,
    ) -> Option<NamesAnswer> {
        let (_, answer) = self.answers.get(&address)?;
        if now_ns < answer.until_ns && answer.suffixes == suffixes {
            return Some(answer.clone());
        }
        self.remove(address);
        None
    }

    /// Keeps an answer.
    pub(super) fn put(&mut self, address: IpAddr, answer: NamesAnswer) {
        self.remove(address);
        if self.answers.len() >= MAX_ADDRESSES
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.answers.remove(&oldest);
        }
        let number = self.next;
        self.next += 1;
        self.order.insert(number, address);
        self.answers.insert(address, (number, answer));
    }

    fn remove(&mut self, address: IpAddr) {
        if let Some((number, _)) = self.answers.remove(&address) {
            self.order.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(number))
    }

    fn until(until_ns: u64) -> NamesAnswer {
        NamesAnswer {
            suffixes: 1,
            names: None,
            until_ns,
        }
    }

    /// CRAWL-3: an answer is valid for its time, and for the suffixes of its question.
    #[test]
    fn answers_hold_for_their_time() {
        let mut cache = Cache::default();
        cache.put(address(1), until(100));
        assert_eq!(cache.fresh(address(1), 1, 99), Some(until(100)));
        assert_eq!(cache.fresh(address(1), 1, 100), None);
        cache.put(address(1), until(100));
        assert_eq!(cache.fresh(address(1), 2, 99), None);
        assert_eq!((cache.answers.len(), cache.order.len()), (0, 0));
    }

    /// LOOKUP-2: at most 20,000 answers are kept; the oldest is dropped.
    #[test]
    fn the_oldest_of_20000_goes() {
        let mut cache = Cache::default();
        for number in 0..20_000 {
            cache.put(address(number), until(100));
        }
        cache.put(address(0), until(100));
        cache.put(address(20_000), until(100));
        assert_eq!((cache.answers.len(), cache.order.len()), (20_000, 20_000));
        assert!(cache.fresh(address(0), 1, 0).is_some());
        assert!(cache.fresh(address(1), 1, 0).is_none());
    }
}
