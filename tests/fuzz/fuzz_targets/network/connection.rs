//! One connection from accept to close, in a box: requests of every form, an application that does
//! what it likes, times, bans, settings and stops, in every order; after each, all that the rules
//! promise of a connection (CONN-15, LOG, LIMIT-5).
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::world::{History, Room};

thread_local! {
    static ROOM: RefCell<Room> = RefCell::new(Room::new().expect("a room"));
}

fuzz_target!(|bytes: &[u8]| {
    let history = History::of(bytes);
    let ran = ROOM.with_borrow_mut(|room| room.run(&history, 1));
    if let Err(fault) = ran {
        panic!("{fault}\n{history:?}");
    }
});
