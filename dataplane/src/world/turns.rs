//! Turns of a connection in which nothing moved, counted while it is driven in a test: a loop that
//! neither consumes, nor writes, nor waits is found from within (CONN-15). For tests and fuzz
//! targets alone.

use std::cell::{Cell, RefCell};

/// So many in a row are a loop without an end.
pub const MOST: u32 = 64;

/// Says how many bytes have moved.
type Probe = Box<dyn Fn() -> u64>;

thread_local! {
    static PROBE: RefCell<Option<Probe>> = const { RefCell::new(None) };
    static MOVED: Cell<u64> = const { Cell::new(0) };
    static IS_POLLED: Cell<bool> = const { Cell::new(false) };
    static IDLE: Cell<u32> = const { Cell::new(0) };
    static STUCK: Cell<bool> = const { Cell::new(false) };
    static ALL: Cell<u64> = const { Cell::new(0) };
}

/// Says what moves on the connection that is driven, or that none is.
pub fn watch(probe: Option<Probe>) {
    PROBE.set(probe);
    IS_POLLED.set(false);
}

/// The connection is polled now, or no more: only meanwhile turns are counted, and nothing is held
/// against it of what was before.
pub fn set_polled(is_polled: bool) {
    IS_POLLED.set(is_polled);
    IDLE.set(0);
}

/// All turns that were ever counted on this thread.
#[cfg(test)]
pub fn all() -> u64 {
    ALL.get()
}

/// Whether a loop without an end was found since this was last asked. Whoever serves may have
/// caught the panic.
pub fn was_stuck() -> bool {
    STUCK.take()
}

/// One more turn: of a loop over the requests of a connection, or wherever the settings that hold
/// are asked for, at each request and each try.
///
/// # Panics
/// With the [`MOST`]th in a row in which nothing moved.
pub fn turn() {
    if !IS_POLLED.get() {
        return;
    }
    PROBE.with_borrow(|probe| {
        let Some(probe) = probe else { return };
        ALL.set(ALL.get() + 1);
        let moved = probe();
        let idle = if MOVED.replace(moved) == moved {
            IDLE.get() + 1
        } else {
            0
        };
        IDLE.set(idle);
        STUCK.set(idle >= MOST);
        assert!(idle < MOST, "{idle} turns without a byte moved");
    });
}
