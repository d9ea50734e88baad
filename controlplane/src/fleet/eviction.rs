//! Checks whether the engine could evict the log when its memory is full (FLEET-28).

use super::facts::Told;

/// The engine's policy, and the last report about it.
#[derive(Default)]
pub(super) struct Eviction {
    policy: String,
    is_told: bool,
}

impl Eviction {
    /// Sets the policy that the engine tells; empty if it does not tell.
    pub(super) fn note(&mut self, policy: String) {
        if policy != self.policy {
            self.policy = policy;
            self.is_told = false;
        }
    }

    /// A sentence, if the log may be evicted.
    pub(super) fn sentence(&self) -> Option<String> {
        sentence(&self.policy)
    }

    /// A report with this sentence, once for each policy.
    pub(super) fn tell(&mut self) -> Option<Told> {
        let detail = self.sentence()?;
        if std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        tracing::warn!("{detail}");
        let what = "eviction";
        Some(Told { what, detail })
    }
}

/// The sentence about a policy. A `volatile-` policy evicts only keys that expire: counts, and
/// snapshots, which the instances write again. The log never expires.
pub(super) fn sentence(policy: &str) -> Option<String> {
    policy.starts_with("allkeys-").then(|| {
        format!(
            "the engine of the fleet has maxmemory-policy {policy}, which can drop the log of bans where its memory is full: expected noeviction, or one that begins with volatile-"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-28: a policy that drops any key is reported once; one that drops only expiring keys is
    /// not.
    #[test]
    fn a_policy_that_drops_any_key_is_told_once() {
        let mut eviction = Eviction::default();
        for policy in ["", "noeviction", "volatile-lru", "volatile-ttl"] {
            eviction.note(policy.to_owned());
            assert!(eviction.tell().is_none(), "{policy}");
        }
        eviction.note("allkeys-lru".to_owned());
        assert!(
            eviction
                .tell()
                .is_some_and(|told| told.detail.contains("allkeys-lru"))
        );
        eviction.note("allkeys-lru".to_owned());
        assert!(eviction.tell().is_none() && eviction.sentence().is_some());
        eviction.note("allkeys-random".to_owned());
        assert!(eviction.tell().is_some());
    }
}
