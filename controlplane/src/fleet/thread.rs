//! The thread `weir-fleet`: carries out the control loop's orders at the engine, and reports the
//! results. Another thread reads the log (`reading`).
//!
//! After a fault it drops the connection, reports that, and opens another one (`again`). It has no
//! state that would be lost with it.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, select};
use weir_shared::threads;

use super::again::{self, Ended, Speaker, Word};
use super::beat::{Beat, Seen};
use super::engine::{Answer, Engine, Fault};
use super::link::Link;
use super::reading::{Reader, Reading, Shared};
use super::seal::{Kind, random};
use super::stamp::Origin;
use super::words::{Order, Said};

/// How long the loop may take to send orders for an open link.
const PATIENCE: Duration = Duration::from_secs(10);

/// While answers are open, how long another order may wait.
const SOON: Duration = Duration::from_millis(2);

/// What the thread needs.
pub(super) struct Thread {
    pub(super) shared: Arc<Shared>,
    pub(super) me: Origin,
    pub(super) orders: Receiver<Order>,
    pub(super) reader: Reader,
}

impl Speaker for Thread {
    type Order = Order;

    fn orders(&self) -> &Receiver<Order> {
        &self.orders
    }

    fn word(order: &Order) -> Word {
        match order {
            Order::Rest(_) => Word::Rest,
            Order::Work => Word::Work,
            _ => Word::None,
        }
    }

    fn speak(&mut self, answers: &mut dyn FnMut()) -> Result<Infallible, Ended> {
        let spoken = self.ask_on(answers);
        self.reader.rest();
        spoken
    }

    fn failed(&mut self, fault: Fault, _: bool) -> Result<(), Ended> {
        self.say(Said::Away(fault.to_string()))
    }
}

impl Thread {
    /// Starts it.
    ///
    /// # Errors
    /// The system refused it.
    pub(super) fn start(self) -> io::Result<()> {
        threads::spawn_while_needed("weir-fleet", move || again::run(self)).map(drop)
    }

    fn ask_on(&self, answers: &mut dyn FnMut()) -> Result<Infallible, Ended> {
        let mut link = Link::open(&self.shared.access, Duration::ZERO)?;
        self.say(Said::Open)?;
        // Orders before this one were for the previous connection.
        let cursor = loop {
            match self.orders.recv_timeout(PATIENCE) {
                Ok(Order::Hello { cursor }) => break cursor,
                Ok(Order::Rest(_)) => return Err(Ended::Rest),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Fault("the control loop is behind".to_owned()).into());
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Ended::Stop),
            }
        };
        let found = random().ok_or_else(|| Fault("the system has no random numbers".to_owned()))?;
        let begun_ns = self.now_ns();
        let welcome = link.hello(&self.me, cursor, found)?;
        let round_trip_ns = self.answered(begun_ns);
        self.say(Said::Welcome {
            welcome,
            round_trip_ns,
        })?;
        self.say(Said::Policy(link.policy()?))?;
        loop {
            if self.hear(&mut link, SOON)? {
                answers();
            }
            link.go_on()?;
            let wait = match link.is_asked() {
                true => Duration::ZERO,
                false => Duration::MAX,
            };
            select! {
                recv(self.orders) -> order => match order {
                    Ok(order) => self.obey(order, &mut link)?,
                    Err(_) => return Err(Ended::Stop),
                },
                recv(self.reader.faults) -> told => match told {
                    Ok((number, fault)) if self.reader.concerns(number) => return Err(fault.into()),
                    Ok(_) => {}
                    Err(_) => return Err(Ended::Stop),
                },
                default(wait) => {}
            }
        }
    }

    /// Takes one answer, if one comes within this time. If an engine has lost what it took, the
    /// connection is replaced after a pause (FLEET-24).
    fn hear(&self, link: &mut Link, wait: Duration) -> Result<bool, Ended> {
        let Some(answer) = link.answer(wait)? else {
            return Ok(false);
        };
        let has_lost = matches!(&answer, Answer::Appended { seq, last } if seq != last);
        self.shared.note_contact();
        self.say(match answer {
            Answer::Stored => return Ok(true),
            Answer::Appended { seq, last } => Said::Appended { seq, last },
            Answer::Beaten { alive, round_trip } => Said::Beaten {
                time_ms: alive.time_ms,
                round_trip_ns: u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX),
                others: (alive.members.into_iter())
                    .map(|beat| Seen {
                        beat: (self.shared.key)
                            .open(Kind::Beat, beat.origin.as_str(), 0, &beat.sealed)
                            .and_then(|text| Beat::read(&text)),
                        origin: beat.origin,
                        age_ms: beat.age_ms,
                    })
                    .collect(),
            },
        })?;
        if has_lost {
            return Err(Fault("the engine does not have what it has taken".to_owned()).into());
        }
        Ok(true)
    }

    /// Takes every open answer.
    fn hear_all(&self, link: &mut Link) -> Result<(), Ended> {
        while link.is_asked() {
            self.hear(link, SOON)?;
        }
        Ok(())
    }

    // long: one arm for each order
    fn obey(&self, order: Order, link: &mut Link) -> Result<(), Ended> {
        let begun_ns = self.now_ns();
        match order {
            Order::Append(_) | Order::Beat(_) | Order::ReadFrom { .. } | Order::Snapshot { .. } => {
            }
            // Faults are not reported while the instance rests.
            Order::Rest(_) => drop(self.hear_all(link)),
            _ => self.hear_all(link)?,
        }
        match order {
            Order::ReadFrom {
                reading: number,
                cursor,
                snapshot,
            } => self.reader.read(Reading {
                number,
                cursor,
                snapshot,
            }),
            Order::Append(batch) => {
                let sealed = self.seal(Kind::Log, self.me.as_str(), batch.seq, &batch.bytes)?;
                link.append(&self.me, batch.seq, &sealed)?;
            }
            Order::Beat(text) => {
                let sealed = self.seal(Kind::Beat, self.me.as_str(), 0, &text)?;
                link.beat(&self.me, &sealed)?;
            }
            Order::Claim {
                name,
                until_ms,
                length_ms,
            } => self.claim(link, &name, until_ms, Duration::from_millis(length_ms))?,
            Order::Told {
                name,
                until_ms,
                length_ms,
            } => {
                let (name, sealed) = self.claim_text(&name, until_ms)?;
                link.told(&name, &sealed, Duration::from_millis(length_ms))?;
                self.answered(begun_ns);
            }
            Order::Snapshot { upto, chunks } => {
                let origin = upto.to_string();
                let sealed: Result<Vec<Vec<u8>>, Ended> = (0..)
                    .zip(chunks)
                    .map(|(place, chunk)| self.seal(Kind::Snapshot, &origin, place, &chunk))
                    .collect();
                link.snapshot_put(upto, sealed?)?;
            }
            Order::Rest(namesakes) => {
                // Removes beats of killed boots of this name as well. A live namesake sends its
                // beat again within a second.
                let names = [&self.me].into_iter().chain(&namesakes);
                let _ = names.map(|name| link.leave(name)).find(Result::is_err);
                return Err(Ended::Rest);
            }
            // Orders for a connection that is open already: nothing to do.
            Order::Hello { .. } | Order::Work => {}
        }
        Ok(())
    }

    /// Claims an alert. A value that does not open with the fleet key counts as no claim.
    fn claim(
        &self,
        link: &mut Link,
        name: &str,
        until_ms: u64,
        length: Duration,
    ) -> Result<(), Ended> {
        let begun_ns = self.now_ns();
        let (name, sealed) = self.claim_text(name, until_ms)?;
        let held = link.claim(&name, &sealed, length)?;
        self.answered(begun_ns);
        let until_ms = held.and_then(|held| {
            let text = (self.shared.key).open(Kind::Claim, &name, 0, &held).ok()?;
            std::str::from_utf8(&text).ok()?.parse().ok()
        });
        self.say(Said::Claimed { until_ms })
    }

    /// The name of an alert in the engine, and the sealed end of its claim.
    fn claim_text(&self, name: &str, until_ms: u64) -> Result<(String, Vec<u8>), Ended> {
        let name = data_encoding::BASE64URL_NOPAD.encode(&self.shared.key.name(name));
        let sealed = self.seal(Kind::Claim, &name, 0, until_ms.to_string().as_bytes())?;
        Ok((name, sealed))
    }

    fn seal(&self, kind: Kind, origin: &str, number: u64, text: &[u8]) -> Result<Vec<u8>, Ended> {
        let sealed = self.shared.key.seal(kind, origin, number, text);
        sealed.ok_or_else(|| Fault("the system has no random numbers".to_owned()).into())
    }

    /// Sends to the loop; waits if the channel is full.
    fn say(&self, said: Said) -> Result<(), Ended> {
        self.shared.said.send(said).map_err(|_| Ended::Stop)
    }

    /// Notes an answer of the engine; returns how long it took.
    fn answered(&self, begun_ns: u64) -> u64 {
        self.shared.note_contact();
        self.now_ns().saturating_sub(begun_ns)
    }

    fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }
}
