//! Lets the disk fail, or the process die, at a step of a write.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Step;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Fail(i32),
    Die,
}

type Meanwhile = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(in crate::state) struct Faults {
    at: Mutex<Option<(Step, Fault)>>,
    dead: AtomicBool,
    meanwhile: Mutex<Option<(Step, Meanwhile)>>,
}

impl Faults {
    pub(in crate::state) fn fail(&self, step: Step, errno: i32) {
        *self.at.lock().unwrap() = Some((step, Fault::Fail(errno)));
    }

    pub(in crate::state) fn die(&self, step: Step) {
        *self.at.lock().unwrap() = Some((step, Fault::Die));
    }

    pub(in crate::state) fn heal(&self) {
        *self.at.lock().unwrap() = None;
    }

    /// Somebody else does something just before a step.
    pub(in crate::state) fn meanwhile(&self, step: Step, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some((step, Box::new(act)));
    }

    pub(in crate::state) fn step(&self, step: Step) -> io::Result<()> {
        let due = self
            .meanwhile
            .lock()
            .unwrap()
            .take_if(|(at, _)| *at == step);
        if let Some((_, act)) = due {
            act();
        }
        if self.dead.load(Ordering::SeqCst) {
            return Err(io::Error::other("killed"));
        }
        match *self.at.lock().unwrap() {
            Some((at, Fault::Fail(errno))) if at == step => {
                Err(io::Error::from_raw_os_error(errno))
            }
            Some((at, Fault::Die)) if at == step => {
                self.dead.store(true, Ordering::SeqCst);
                Err(io::Error::other("killed"))
            }
            _ => Ok(()),
        }
    }

    pub(in crate::state) fn crashed(&self) -> bool {
        matches!(*self.at.lock().unwrap(), Some((_, Fault::Die)))
    }
}
