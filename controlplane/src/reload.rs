//! The control plane's parts of a reload (RELOAD-2): tokens, lookups, rules, feeds, and the control
//! loop's own values, including the fleet. Files are read on the thread of the caller or of their
//! owner; the loop never waits for a disk.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use weir_shared::clock::Now;
use weir_shared::reload::{Part, Reloaded, Take};
use weir_shared::settings::Settings;

use crate::control_loop::Control;
use crate::fleet::Ready;
use crate::order::LoopCommand;
use crate::wiring::{ControlError, ControlHandle};

/// How long the loop may take for either step: it never blocks, but may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

impl ControlHandle {
    /// The parts of a reload, in the order in which they are applied.
    pub fn parts(&self) -> Vec<Part> {
        vec![
            self.router.part(),
            self.lookups.part(),
            self.rules.part(),
            self.feeds.part(),
            of_loop(self.orders.clone()),
        ]
    }
}

/// The control loop's part: bans, anomalies, files.
fn of_loop(orders: Sender<LoopCommand>) -> Part {
    Box::new(move |new| {
        let late = || "the control loop does not answer: try again".to_owned();
        let fleet = Ready::read(&new.settings.fleet).map_err(|fault| vec![fault])?;
        let (told, judged) = bounded(1);
        let order = LoopCommand::Judge(Arc::clone(&new.settings), told);
        let sent = orders.send_timeout(order, PATIENCE);
        sent.map_err(|_| vec![late()])?;
        let judged = judged.recv_timeout(PATIENCE);
        let judged = judged.map_err(|_| vec![late()])?;
        let is_in_fleet = judged.map_err(|fault| vec![fault])?;
        let fleet = fleet.map(|mut ready| {
            // Only an instance that is not in a fleet yet reads fleet.json.
            if !is_in_fleet {
                ready.read_kept(&new.settings.state.dir);
            }
            Box::new(ready)
        });
        let (orders, new) = (orders.clone(), new.clone());
        Ok(Box::new(move || {
            let (told, done) = bounded(1);
            let sent = orders.send_timeout(LoopCommand::Take(new, fleet, told), PATIENCE);
            let taken = sent.is_ok() && done.recv_timeout(PATIENCE).is_ok();
            taken.then_some(()).ok_or_else(|| {
                format!(
                    "bans, alerts and state files may still go by the old settings: {}",
                    late()
                )
            })
        }) as Take)
    })
}

impl Control {
    /// Carries out the requests of the process.
    pub(crate) fn take_orders(&mut self, now: Now) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                LoopCommand::Judge(settings, told) => {
                    let _ = told.send(self.judge(&settings, now));
                }
                LoopCommand::Take(new, fleet, told) => {
                    self.take_settings(new, now);
                    self.take_fleet(fleet.map(|ready| *ready));
                    let _ = told.send(());
                }
                LoopCommand::Save(told) => self.save_all(&told, now),
                LoopCommand::Give(give) => self.giving = Some(give),
            }
        }
    }

    fn judge(&self, settings: &Settings, now: Now) -> Result<bool, String> {
        let max_bans = settings.bans.max;
        let fits = self.bans.fit(settings.into(), now);
        fits.map_err(|held| ControlError::TooManyBans { held, max_bans }.to_string())?;
        Ok(self.fleet.is_some())
    }

    /// Applies new settings. Counters, cooldowns and bans stay as they are: the new settings hold
    /// for decisions from now on.
    fn take_settings(&mut self, new: Reloaded, now: Now) {
        let settings = Arc::clone(&new.settings);
        let trusted = &settings.identity.trusted_proxies;
        self.bans.take_settings((&*settings).into(), trusted, now);
        self.detection.take_settings(&settings);
        self.files.take_settings(&settings);
        self.origins.set_shown(settings.endpoints.metrics_top_n);
        if let Some(fleet) = &mut self.fleet {
            fleet.take_settings(&new.listing);
        }
        self.reloaded.store(Arc::new(new));
        self.settings = settings;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::settings;

    /// RELOAD-2: a reload trusts a loop that receives the settings; if the loop does not get to
    /// them, wherever it hangs, the answer of the reload says so.
    #[test]
    fn a_loop_that_does_not_take_the_settings_is_told() {
        let new = Reloaded {
            settings: Arc::new(settings()),
            listing: Arc::from([]),
            warnings: Arc::from([]),
        };
        for (stops_at, is_taken) in [("nothing", true), ("taking", false), ("orders", false)] {
            let (orders, ordered) = bounded::<LoopCommand>(2);
            let stand_in = std::thread::spawn(move || {
                while let Ok(order) = ordered.recv() {
                    match order {
                        LoopCommand::Judge(_, told) => told.send(Ok(false)).unwrap(),
                        LoopCommand::Take(.., told) if stops_at == "nothing" => {
                            told.send(()).unwrap()
                        }
                        LoopCommand::Take(..) | LoopCommand::Save(_) | LoopCommand::Give(_) => {}
                    }
                    if stops_at == "orders" {
                        return;
                    }
                }
            });
            let take = of_loop(orders)(&new).unwrap_or_else(|faults| panic!("{faults:?}"));
            if stops_at == "orders" {
                stand_in.join().unwrap();
            }
            let told = take();
            assert_eq!(told.is_ok(), is_taken, "{stops_at}: {told:?}");
            if let Err(told) = told {
                assert!(told.contains("the old settings"), "{told}");
            }
        }
    }
}
