//! Notes a signal that should end a command, so that the command can end by itself and in order.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// A flag that becomes true when one of these signals is received.
pub fn by(kinds: &[SignalKind]) -> io::Result<Arc<AtomicBool>> {
    by_or(kinds, Duration::ZERO, || {})
}

/// The same flag. Calls `last` if the command still runs `patience` after the signal.
pub fn by_or(
    kinds: &[SignalKind],
    patience: Duration,
    last: impl FnOnce() + Send + 'static,
) -> io::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals: io::Result<Vec<_>> = {
        let _guard = runtime.enter();
        kinds.iter().map(|kind| signal(*kind)).collect()
    };
    let mut signals = signals?;
    let ended = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ended);
    let thread = std::thread::Builder::new().name("command-signals".to_owned());
    thread.spawn(move || {
        runtime.block_on(poll_fn(|cx| {
            let mut came = signals.iter_mut().map(|signal| signal.poll_recv(cx));
            match came.any(|came| came.is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
        told.store(true, Ordering::Relaxed);
        std::thread::sleep(patience);
        last();
    })?;
    Ok(ended)
}
