//! Limits without bans, and rules.json, in enforce and observe mode (RULE).

mod limits_without_bans;
