//! Connections to the application, and its addresses: the idle connections are used again, a name
//! is resolved every few seconds (FORWARD-9).

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use weir_shared::settings::{Settings, Upstream};

use crate::conn::buffers::Buffers;
use crate::conn::transport::tcp_keepalive;
use crate::upstream::bound::LocalBound;
use crate::worker::clock::{CoarseClock, nanos};
use crate::worker::listeners::of_any_kind;

/// Why no connection was made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The application refused, or its name did not resolve.
    #[error("{upstream}: {source}")]
    Refused {
        /// `host:port`
        upstream: String,
        /// The system's error.
        source: io::Error,
    },
    /// No connection within `WAF_UPSTREAM_CONNECT_TIMEOUT`.
    #[error("{upstream}: no connection within {seconds} s")]
    TooSlow {
        /// `host:port`
        upstream: String,
        /// The time-out.
        seconds: f64,
    },
}

/// A connection between two requests.
struct Idle {
    stream: TcpStream,
    since_ns: u64,
}

/// The pool of one worker.
pub struct Pool {
    idle: RefCell<Vec<Idle>>,
    /// Another has taken its place.
    retired: Cell<bool>,
    /// The buffers of its connections.
    pub buffers: Buffers,
    /// The worker's clock.
    pub clock: Rc<CoarseClock>,
    upstream: Upstream,
    /// The name in it, if it is one.
    name: Option<Arc<Name>>,
    connect_timeout: Duration,
    /// `WAF_UPSTREAM_TIMEOUT`, nanoseconds.
    pub answer_ns: u64,
    keep_ns: u64,
    /// Idle connections that are kept at most.
    max_idle: usize,
    /// The bound on requests at the application, shared by all workers.
    pub bound: Rc<LocalBound>,
    /// `WAF_UPSTREAM_QUEUE`
    pub queue: Duration,
}

impl Pool {
    /// An empty pool.
    pub fn new(
        settings: &Settings,
        name: Option<Arc<Name>>,
        clock: Rc<CoarseClock>,
        bound: Rc<LocalBound>,
    ) -> Self {
        let connections = &settings.connections;
        let idle = connections
            .idle_upstream
            .unwrap_or(connections.max_upstream);
        Self {
            idle: RefCell::default(),
            retired: Cell::new(false),
            buffers: Buffers::new(),
            clock,
            upstream: settings.upstream.clone(),
            name,
            connect_timeout: settings.timeouts.upstream_connect,
            answer_ns: nanos(settings.timeouts.upstream),
            keep_ns: nanos(settings.timeouts.upstream_keepalive),
            // They count as open files (CONN-4), so each worker has its share of them.
            max_idle: (idle / settings.workers.max(1)).max(1),
            bound,
            queue: connections.upstream_queue,
        }
    }

    /// Takes the place of another, which keeps nothing from now on.
    pub fn replace(&self, other: &Self) {
        other.retired.set(true);
        let idle = other.idle.take();
        if other.upstream == self.upstream {
            self.idle.replace(idle);
        }
    }

    /// The idle connection that was used last, if it still stands.
    ///
    /// A request that may be sent again is content with what the runtime's event queue has told,
    /// which costs no system call. For one that may not, the socket itself is asked (FORWARD-5).
    pub fn take(&self, repeatable: bool) -> Option<TcpStream> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let each = idle.pop()?;
            if !self.is_stale(&each)
                && is_quiet_so_far(&each.stream)
                && (repeatable || is_quiet(&each.stream))
            {
                return Some(each.stream);
            }
        }
    }

    /// Keeps a connection that can take another request.
    pub fn keep(&self, stream: TcpStream) {
        let mut idle = self.idle.borrow_mut();
        if self.keep_ns > 0 && !self.retired.get() && idle.len() < self.max_idle {
            let since_ns = self.clock.mono_ns();
            idle.push(Idle { stream, since_ns });
        }
    }

    /// Makes a connection; says how many microseconds it took.
    ///
    /// # Errors
    /// [`ConnectError`] once the application refused or `WAF_UPSTREAM_CONNECT_TIMEOUT` has passed.
    pub async fn connect(&self) -> Result<(TcpStream, u64), ConnectError> {
        let name = || self.upstream.to_string();
        let refused = |source| ConnectError::Refused {
            upstream: name(),
            source,
        };
        let too_slow = || ConnectError::TooSlow {
            upstream: name(),
            seconds: self.connect_timeout.as_secs_f64(),
        };
        let started = self.clock.now();
        let stream = self.connect_in_time().await;
        let stream = stream.map_err(refused)?.ok_or_else(too_slow)?;
        Ok((stream, self.clock.since_us(started)))
    }

    /// Connects; none where that takes too long. A connection over a Unix socket is of the same
    /// type, as those of clients are.
    async fn connect_in_time(&self) -> io::Result<Option<TcpStream>> {
        let (at_most, clock) = (self.connect_timeout, &self.clock);
        let stream = match (&self.upstream, &self.name) {
            (Upstream::Unix(path), _) => {
                let connected = clock.within(at_most, UnixStream::connect(path)).await;
                let stream = connected.transpose()?;
                return stream
                    .map(|it| of_any_kind(it.into_std()?.into()))
                    .transpose();
            }
            (Upstream::Tcp { .. }, Some(name)) => {
                let began = clock.now();
                let Some(addresses) = clock.within(at_most, name.addresses()).await else {
                    return Ok(None);
                };
                let left = at_most.saturating_sub(Duration::from_micros(clock.since_us(began)));
                connect_to_one(clock, &addresses?, left, TcpStream::connect).await?
            }
            // An address: nobody is asked.
            (Upstream::Tcp { host, port }, None) => {
                let connecting = TcpStream::connect((host.as_str(), *port));
                clock.within(at_most, connecting).await.transpose()?
            }
        };
        if let Some(stream) = &stream {
            stream.set_nodelay(true)?;
            SockRef::from(stream).set_tcp_keepalive(&tcp_keepalive())?;
        }
        Ok(stream)
    }

    /// Drops what has been idle for too long. Called on the worker's tick.
    pub fn sweep(&self) {
        self.buffers.pipes.sweep();
        let mut idle = self.idle.borrow_mut();
        if !idle.is_empty() {
            idle.retain(|each| !self.is_stale(each));
        }
    }

    fn is_stale(&self, idle: &Idle) -> bool {
        self.clock.mono_ns().saturating_sub(idle.since_ns) >= self.keep_ns
    }
}

/// Connects to the first of these addresses that answers; none where the last is too slow. Each has
/// its share of the time that is left, so that one that nobody answers from does not use up that of
/// the others.
async fn connect_to_one<S, F: Future<Output = io::Result<S>>>(
    clock: &CoarseClock,
    addresses: &[SocketAddr],
    at_most: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<Option<S>> {
    let (mut left, mut outcome) = (at_most, Ok(None));
    for (address, to_try) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let share = left / u32::try_from(to_try).unwrap_or(u32::MAX);
        let began = clock.now();
        outcome = clock.within(share, connect(*address)).await.transpose();
        left -= match outcome {
            Ok(Some(_)) => break,
            Ok(None) => share,
            Err(_) => Duration::from_micros(clock.since_us(began)).min(share),
        };
    }
    outcome
}

/// Whether nothing is known to have come: no byte, no end, no reset.
fn is_quiet_so_far(stream: &TcpStream) -> bool {
    would_block(stream.try_read(&mut [0]))
}

/// Whether nothing has come.
fn is_quiet(stream: &TcpStream) -> bool {
    would_block(SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]))
}

fn would_block(read: io::Result<usize>) -> bool {
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

const THREAD: &str = "weir-resolver";

/// How long is waited between two questions.
#[derive(Clone, Copy)]
struct Pauses {
    answered: Duration,
    failed: Duration,
}

const PAUSES: Pauses = Pauses {
    answered: Duration::from_secs(3),
    failed: Duration::from_secs(1),
};

/// What a name resolves to, as far as that is known.
#[derive(Clone, Debug)]
enum Known {
    /// The first question is not answered.
    NotYet,
    /// No question was answered with an address so far; the last error.
    Nothing(io::ErrorKind, Arc<str>),
    /// The addresses of the last good answer, in its order.
    Addresses(Arc<[SocketAddr]>),
}

/// The name of an application. Its thread ends once nobody holds it.
#[derive(Debug)]
pub struct Name {
    host: String,
    port: u16,
    known: watch::Sender<Known>,
}

impl Name {
    /// The name in a setting; none where the setting is an address or a path. The one from before a
    /// reload stays where it is the same.
    pub fn of(upstream: &Upstream, before: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        let Upstream::Tcp { host, port } = upstream else {
            return None;
        };
        if host.parse::<IpAddr>().is_ok() {
            return None;
        }
        let same = before.filter(|before| before.host == *host && before.port == *port);
        let start = || {
            let resolve = |host: &str, port| Ok((host, port).to_socket_addrs()?.collect());
            Self::start(host.clone(), *port, PAUSES, resolve)
        };
        Some(same.map_or_else(start, Arc::clone))
    }

    fn start(
        host: String,
        port: u16,
        pauses: Pauses,
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> Arc<Self> {
        let name = Arc::new(Self {
            host,
            port,
            known: watch::Sender::new(Known::NotYet),
        });
        let held = Arc::downgrade(&name);
        // Its end is told to nobody: it ends after a reload, and without it the addresses stay.
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        if let Err(error) = thread.spawn(move || ask_again(&held, pauses, resolve)) {
            name.take(Err(error));
        }
        name
    }

    /// The addresses, in the order in which they are to be tried. The first answer is waited for.
    ///
    /// # Errors
    /// The name has not resolved since the start.
    pub async fn addresses(&self) -> io::Result<Arc<[SocketAddr]>> {
        let mut known = self.known.subscribe();
        let is_known = |known: &Known| !matches!(known, Known::NotYet);
        let known = known.wait_for(is_known).await.map_err(io::Error::other)?;
        match &*known {
            Known::Addresses(addresses) => Ok(Arc::clone(addresses)),
            Known::Nothing(kind, error) => Err(io::Error::new(*kind, &**error)),
            Known::NotYet => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Takes in an answer; false if it has no address. The addresses before it stay then.
    fn take(&self, answer: io::Result<Vec<SocketAddr>>) -> bool {
        let no_address = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let answer = match answer {
            Ok(addresses) if addresses.is_empty() => Err(no_address()),
            answer => answer,
        };
        match answer {
            Ok(addresses) => {
                let known = Known::Addresses(addresses.into());
                self.known.send_replace(known);
                true
            }
            Err(error) => {
                self.known.send_if_modified(|known| {
                    let has_none = !matches!(known, Known::Addresses(_));
                    if has_none {
                        *known = Known::Nothing(error.kind(), error.to_string().into());
                    }
                    has_none
                });
                false
            }
        }
    }
}

/// Asks again and again, until nobody holds the name.
fn ask_again(
    name: &Weak<Name>,
    pauses: Pauses,
    resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
) {
    let mut failed = false;
    while let Some(held) = name.upgrade() {
        let answer = resolve(&held.host, held.port);
        let error = answer.as_ref().err().map(ToString::to_string);
        let is_good = held.take(answer);
        if !is_good && !failed {
            let (host, error) = (&held.host, error.unwrap_or_default());
            tracing::warn!("the application's name {host} does not resolve: {error}");
        }
        failed = !is_good;
        drop(held);
        let pause = if failed {
            pauses.failed
        } else {
            pauses.answered
        };
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use tokio::time::Instant;

    use super::*;

    const AT_ONCE: Pauses = Pauses {
        answered: Duration::ZERO,
        failed: Duration::ZERO,
    };

    /// CONN-10: each address has its share of the time, and leaves what it does not need to others.
    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the runtime's own clock, which stands"
    )]
    fn each_address_has_its_share_of_the_time() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let clock = CoarseClock::new(weir_shared::clock::Clock::manual(0).0);
            // What each address does, which one is connected to, and after how many seconds.
            for (they, reached, after) in [
                ("silent good", Some(1), 5),
                ("silent silent silent good", Some(3), 7),
                ("refuses silent good", Some(2), 5),
                ("refuses silent", None, 10),
                ("silent silent", None, 10),
                ("good silent", Some(0), 0),
            ] {
                let they: Vec<_> = they.split(' ').collect();
                let addresses: Vec<_> = (0..).take(they.len()).map(address).collect();
                let connect = |to: SocketAddr| {
                    let at = addresses.iter().position(|it| *it == to).unwrap();
                    let does = they[at];
                    async move {
                        match does {
                            "good" => Ok(at),
                            "refuses" => Err(io::ErrorKind::ConnectionRefused.into()),
                            _ => std::future::pending().await,
                        }
                    }
                };
                let began = Instant::now();
                let at_most = Duration::from_secs(10);
                let connected = connect_to_one(&clock, &addresses, at_most, connect).await;
                assert_eq!(connected.unwrap(), reached, "{they:?}");
                assert_eq!(began.elapsed().as_secs(), after, "{they:?}");
            }
        });
    }

    type Answer = io::Result<Vec<SocketAddr>>;

    fn address(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 80).into()
    }

    /// A name whose questions are answered by the test: each is told, and hangs until its answer
    /// comes.
    fn asked() -> (Arc<Name>, Receiver<()>, Sender<Answer>) {
        let (told, questions) = channel();
        let (answers, answer) = channel();
        let answer = Mutex::new(answer);
        let resolve = move |host: &str, port: u16| {
            assert_eq!((host, port), ("a.test", 80));
            // The test may have seen enough.
            let _ = told.send(());
            let answer = answer.lock().unwrap().recv();
            answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        let name = Name::start("a.test".to_owned(), 80, AT_ONCE, resolve);
        (name, questions, answers)
    }

    fn addresses(name: &Name) -> io::Result<Vec<SocketAddr>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let known = runtime.unwrap().block_on(name.addresses());
        known.map(|known| known.to_vec())
    }

    /// A change of address is followed; a resolver that hangs is asked nothing more, and the
    /// addresses before stay, as they do where it has no answer.
    #[test]
    fn the_last_good_answer_holds() {
        let (name, questions, answers) = asked();
        let answer = |answer: Answer| {
            answers.send(answer).unwrap();
            // The next question: the answer was taken in.
            questions.recv().unwrap();
        };
        questions.recv().unwrap();
        answer(Ok(vec![address(1), address(2)]));
        assert_eq!(addresses(&name).unwrap(), [address(1), address(2)]);
        answer(Ok(vec![address(3)]));
        assert_eq!(addresses(&name).unwrap(), [address(3)]);
        answer(Err(io::ErrorKind::TimedOut.into()));
        answer(Ok(Vec::new()));
        for _ in 0..100 {
            assert_eq!(addresses(&name).unwrap(), [address(3)]);
        }
        assert!(questions.try_recv().is_err(), "one question at a time");
    }

    /// A name that does not resolve is an error until it does.
    #[test]
    fn a_name_that_does_not_resolve_is_an_error_until_it_does() {
        let (name, questions, answers) = asked();
        questions.recv().unwrap();
        answers.send(Err(io::ErrorKind::NotFound.into())).unwrap();
        assert_eq!(
            addresses(&name).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        questions.recv().unwrap();
        answers.send(Ok(vec![address(1)])).unwrap();
        questions.recv().unwrap();
        assert_eq!(addresses(&name).unwrap(), [address(1)]);
    }

    /// The first answer is waited for.
    #[test]
    fn the_first_answer_is_waited_for() {
        let (name, questions, answers) = asked();
        questions.recv().unwrap();
        let waiting = Arc::clone(&name);
        let waiting = std::thread::spawn(move || addresses(&waiting).unwrap());
        answers.send(Ok(vec![address(1)])).unwrap();
        assert_eq!(waiting.join().unwrap(), [address(1)]);
    }

    /// The thread ends with the last who holds the name; a reload that keeps the name keeps it.
    #[test]
    fn the_thread_ends_with_its_name() {
        let (name, questions, answers) = asked();
        let upstream = |host: &str| Upstream::Tcp {
            host: host.to_owned(),
            port: 80,
        };
        let kept = Name::of(&upstream("a.test"), Some(&name)).unwrap();
        assert!(Arc::ptr_eq(&kept, &name));
        assert!(Name::of(&upstream("192.0.2.1"), Some(&name)).is_none());
        assert!(Name::of(&upstream("::1"), Some(&name)).is_none());
        questions.recv().unwrap();
        drop((kept, name));
        answers.send(Ok(vec![address(1)])).unwrap();
        assert!(questions.recv().is_err(), "the thread has ended");
    }
}
