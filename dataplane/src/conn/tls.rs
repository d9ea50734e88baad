//! TLS over the socket of a client: rustls between bytes that are read and bytes that are written.
//! The protocol is rustls's; here is only when it reads and writes.

use std::io::{self, BufRead as _, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use weir_shared::tls_record;

/// What rustls holds encrypted at most before a write waits (CONN-1): two records.
const MAX_UNSENT: usize = 2 * RECORD;
/// The same where it is gathered: what one system call writes of many frames.
const MAX_GATHERED: usize = 4 * RECORD;
/// Content of a record at most.
const RECORD: usize = tls_record::CONTENT;
/// rustls copies what it encrypts, and glibc copies more than 2,112 bytes by one instruction
/// (`rep movsb`) where the processor has a fast one. Those of AMD need several times as long for it
/// where the two places lie unluckily to each other. Smaller pieces are copied by vectors.
const PIECE: usize = 2 * 1024;
/// rustls reads so much at once, and keeps room for it.
const LARGE: usize = 4 * 1024;
/// Pieces that are encrypted at once: more than [`MAX_GATHERED`] has.
const PIECES: usize = 40;

/// How far a handshake is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advanced {
    /// More has to come.
    UnderWay,
    /// TLS is spoken; whether it goes on from an earlier session.
    Done {
        /// It does.
        resumed: bool,
    },
    /// The peer has closed.
    Closed,
}

/// A TLS session of the service.
pub struct Session {
    connection: ServerConnection,
    /// The bytes that were read before the session began.
    early: Bytes,
    /// Nothing more comes from the socket.
    has_ended: bool,
    /// Content that is encrypted and not told as written: the socket has not taken all of it.
    untold: usize,
    /// Records that the socket has not taken whole.
    unsent: usize,
    /// Bytes that the socket took since this was asked last.
    sent: usize,
}

impl Session {
    /// A session whose handshake is to come; `early` was read already.
    ///
    /// # Errors
    /// rustls refuses the settings, which it would have done at the start.
    pub fn new(config: Arc<ServerConfig>, early: Bytes) -> Result<Self, rustls::Error> {
        let mut connection = ServerConnection::new(config)?;
        connection.set_buffer_limit(Some(MAX_UNSENT));
        Ok(Self {
            connection,
            early,
            has_ended: false,
            untold: 0,
            unsent: 0,
            sent: 0,
        })
    }

    /// Goes on with the handshake as far as the bytes that have come lead.
    ///
    /// # Errors
    /// The peer does not keep to TLS, or the socket failed.
    pub fn advance(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> io::Result<Advanced> {
        if let Poll::Ready(outcome) = self.poll_fill(stream, cx) {
            outcome?;
        }
        Ok(if !self.connection.is_handshaking() {
            let resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
            Advanced::Done { resumed }
        } else if self.has_ended {
            Advanced::Closed
        } else {
            Advanced::UnderWay
        })
    }

    /// The protocol that was agreed on (ALPN).
    pub fn agreed(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// Waits until the socket has something for the handshake.
    pub fn poll_handshake(&self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<()> {
        if self.early.is_empty() {
            return stream.poll_read_ready(cx).map(|_| ());
        }
        Poll::Ready(())
    }

    /// Whether something of rustls's waits to be written.
    pub fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Reads once from the socket, and goes on with what came.
    ///
    /// # Errors
    /// The peer does not keep to TLS, or the socket failed.
    pub fn poll_fill(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut source = Source {
            stream,
            early: &mut self.early,
            cx,
        };
        match self.connection.read_tls(&mut source) {
            Ok(0) => self.has_ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
        let processed = self.connection.process_new_packets();
        if matches!(&processed, Ok(state) if state.plaintext_bytes_to_read() > LARGE) {
            // rustls gives back the room of what came, which is decrypted now, where it looks for
            // more (CONN-1).
            let _ = self.connection.read_tls(&mut Nothing);
        }
        // Alerts, tickets, answers to new keys: what is not taken now is written with what follows.
        let _ = self.poll_flush(stream, cx);
        match processed {
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => {
                self.has_ended = true;
                Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)))
            }
        }
    }

    /// Whether content can be read.
    pub fn has_content(&mut self) -> bool {
        let mut reader = self.connection.reader();
        reader.fill_buf().is_ok_and(|content| !content.is_empty())
    }

    /// Waits until content can be read, or the end.
    pub fn poll_readable(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let held = self.connection.reader().fill_buf().map(drop);
            let waits = held.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if !waits || self.has_ended {
                return Poll::Ready(());
            }
            if ready!(self.poll_fill(stream, cx)).is_err() {
                return Poll::Ready(());
            }
        }
    }

    /// Reads content. An end without the word that nothing follows is an end: what HTTP carries
    /// says itself how long it is.
    pub fn poll_read(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut reader = self.connection.reader();
            match reader.fill_buf() {
                Ok(content) => {
                    let count = content.len().min(buf.remaining());
                    let content = content.get(..count).unwrap_or_default();
                    content.chunks(PIECE).for_each(|piece| buf.put_slice(piece));
                    reader.consume(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            if self.has_ended {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_fill(stream, cx))?;
        }
    }

    /// Encrypts what fits, once what was encrypted before is written. It is told at once, though
    /// the socket may not have taken all of it: for what is not counted.
    pub fn poll_write(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        debug_assert!(self.untold == 0, "what is counted waits, and comes again");
        ready!(self.poll_flush(stream, cx))?;
        let taken = self.encrypt(bufs)?;
        match self.poll_flush(stream, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
        }
    }

    /// Encrypts what fits, and tells it once the socket has taken it, record by record (CONN-5).
    /// Whoever waits comes again with the same bytes, and maybe more behind them.
    pub fn poll_write_counted(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.count(bufs, |session| session.poll_flush(stream, cx))
    }

    /// [`Self::poll_write_counted`] past the runtime's readiness: pending where the socket has no
    /// room.
    pub fn push_counted(
        &mut self,
        stream: &TcpStream,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.count(bufs, |session| session.push(stream).map(Ok))
    }

    fn count(
        &mut self,
        bufs: &[IoSlice<'_>],
        mut flush: impl FnMut(&mut Self) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<usize>> {
        let mut flushed = flush(self)?;
        if self.untold == 0 {
            ready!(flushed);
            self.untold = self.encrypt(bufs)?;
            flushed = flush(self)?;
        }
        let on_its_way = self.on_its_way();
        let taken = self.untold.saturating_sub(on_its_way);
        if taken == 0 && flushed.is_pending() {
            return Poll::Pending;
        }
        self.untold = on_its_way;
        Poll::Ready(Ok(taken))
    }

    /// Encrypts what there is room for, which [`Self::poll_flush`] writes.
    ///
    /// # Errors
    /// The session has ended.
    pub fn encrypt(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|buf| buf.len() <= PIECE) {
            return self.connection.writer().write_vectored(bufs);
        }
        let mut room = [IoSlice::new(&[]); PIECES];
        self.connection
            .writer()
            .write_vectored(pieces(bufs, &mut room))
    }

    /// From now on what is written is gathered.
    pub fn begin_gathering(&mut self) {
        self.connection.set_buffer_limit(Some(MAX_GATHERED));
    }

    /// Content of the records that the socket has not taken whole. All but the last are full.
    fn on_its_way(&self) -> usize {
        let Some(full) = self.unsent.checked_sub(1) else {
            return 0;
        };
        let last = self.untold.saturating_sub(1) % RECORD + 1;
        self.untold.min(last + full * RECORD)
    }

    /// How many bytes the socket took since this was asked last.
    pub const fn take_sent(&mut self) -> usize {
        std::mem::replace(&mut self.sent, 0)
    }

    /// Writes all that was encrypted.
    pub fn poll_flush(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let write =
            |bufs: &[IoSlice<'_>]| match Pin::new(&mut *stream).poll_write_vectored(cx, bufs) {
                Poll::Ready(written) => written,
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            };
        let unsent = &mut self.unsent;
        let mut sink = Sink { write, unsent };
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut sink) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes all that was encrypted, past the runtime's readiness: pending where the socket has no
    /// room.
    pub fn push(&mut self, stream: &TcpStream) -> Poll<()> {
        // The socket itself is asked.
        let write = |bufs: &[IoSlice<'_>]| socket2::SockRef::from(stream).send_vectored(bufs);
        let unsent = &mut self.unsent;
        let mut sink = Sink { write, unsent };
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut sink) {
                Ok(count @ 1..) => self.sent += count,
                // An error is found again by the write that follows.
                Ok(_) | Err(_) => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// Writes what the socket takes at once; the rest is given up.
    pub fn write_at_once(&mut self, stream: &TcpStream, bytes: &[u8]) {
        let _ = self.connection.writer().write(bytes);
        let _ = self.push(stream);
    }

    /// Says that nothing follows. A handshake that was not done ends in silence, and so does a
    /// response that was cut: what was not told as written is not to arrive.
    pub fn close(&mut self, stream: &TcpStream) {
        if self.connection.is_handshaking() || self.untold > 0 {
            return;
        }
        self.connection.send_close_notify();
        let _ = self.push(stream);
    }
}

/// The socket as rustls reads it, behind what was read already.
struct Source<'a, 'b> {
    stream: &'a mut TcpStream,
    early: &'a mut Bytes,
    cx: &'a mut Context<'b>,
}

impl Read for Source<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !self.early.is_empty() {
            let count = self.early.len().min(buf.len());
            self.early
                .copy_to_slice(buf.get_mut(..count).unwrap_or_default());
            return Ok(count);
        }
        let mut buf = ReadBuf::new(buf);
        match Pin::new(&mut *self.stream).poll_read(self.cx, &mut buf) {
            Poll::Ready(read) => read.map(|()| buf.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// A socket that has nothing now.
struct Nothing;

impl Read for Nothing {
    fn read(&mut self, _buf: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// How many of these pieces were not taken whole, where so many bytes were.
fn not_whole(bufs: &[IoSlice<'_>], mut taken: usize) -> usize {
    let whole = bufs.iter().take_while(|buf| {
        let is_whole = buf.len() <= taken;
        taken = taken.saturating_sub(buf.len());
        is_whole
    });
    bufs.len() - whole.count()
}

/// The socket as rustls writes to it, a record a piece.
struct Sink<'a, W> {
    write: W,
    unsent: &'a mut usize,
}

impl<W: FnMut(&[IoSlice<'_>]) -> io::Result<usize>> Write for Sink<'_, W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = (self.write)(bufs);
        *self.unsent = not_whole(bufs, *written.as_ref().unwrap_or(&0));
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning of these bytes in pieces of [`PIECE`] at most: all of it, where there is room.
fn pieces<'a, 'room>(
    bufs: &'a [IoSlice<'_>],
    room: &'room mut [IoSlice<'a>],
) -> &'room [IoSlice<'a>] {
    let mut count = 0;
    let all = bufs.iter().flat_map(|buf| buf.chunks(PIECE));
    for (place, piece) in room.iter_mut().zip(all) {
        *place = IoSlice::new(piece);
        count += 1;
    }
    room.get(..count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::transport::Io;

    /// CONN-5: a record counts once all of it was taken.
    #[test]
    fn records_count_whole() {
        let (first, second) = ([0; 10], [0; 4]);
        let bufs = [IoSlice::new(&first), IoSlice::new(&second)];
        for (taken, unsent) in [(0, 2), (9, 2), (10, 1), (13, 1), (14, 0)] {
            assert_eq!(not_whole(&bufs, taken), unsent, "{taken}");
        }
    }

    /// What is encrypted at once is the beginning of what is to be written, in order, in pieces
    /// that are copied quickly; and all of it where it is no more than is gathered.
    #[test]
    fn what_is_encrypted_is_cut_small() {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(3 * MAX_GATHERED).collect();
        for lengths in [
            [0, 0, 9],
            [9, 16_384, 9],
            [PIECE, PIECE + 1, 0],
            [1, MAX_GATHERED, 1],
            [9, 2 * MAX_GATHERED, 9],
        ] {
            let mut rest = &bytes[..];
            let bufs = lengths.map(|length| {
                let (buf, behind) = rest.split_at(length);
                rest = behind;
                IoSlice::new(buf)
            });
            let mut room = [IoSlice::new(&[]); PIECES];
            let pieces = pieces(&bufs, &mut room);
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE));
            let cut: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            let whole = lengths.iter().sum::<usize>();
            assert!(cut.len() >= whole.min(MAX_GATHERED), "{lengths:?}");
            assert!(bytes.starts_with(&cut), "{lengths:?}");
        }
    }

    /// A session that is established, its socket, and a client that reads all there is once it is
    /// told to.
    fn established() -> (Session, std::net::TcpStream, impl FnOnce() -> Vec<u8>) {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.unwrap())
            .unwrap();
        config.max_fragment_size = Some(tls_record::FRAGMENT);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket2::SockRef::from(&listener)
            .set_send_buffer_size(4096)
            .unwrap();
        let address = listener.local_addr().unwrap();
        let (go, told) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let socket = std::net::TcpStream::connect(address).unwrap();
            let name = "a.example".try_into().unwrap();
            let connection = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, socket);
            stream.conn.complete_io(&mut stream.sock).unwrap();
            let mut all = Vec::new();
            if told.recv().is_ok() {
                stream.read_to_end(&mut all).unwrap();
            }
            all
        });
        let (mut stream, _) = listener.accept().unwrap();
        let mut session = Session::new(Arc::new(config), Bytes::new()).unwrap();
        while session.connection.is_handshaking() {
            session.connection.complete_io(&mut stream).unwrap();
        }
        stream.set_nonblocking(true).unwrap();
        let read = move || {
            go.send(()).unwrap();
            reader.join().unwrap()
        };
        (session, stream, read)
    }

    /// CONN-1: a block of an answer, and what is written before it, are two records, and each fits
    /// into 16 KiB of memory; no more is encrypted before the socket takes it.
    #[test]
    fn a_block_is_two_records() {
        let (mut session, _stream, read) = established();
        let block = vec![b'x'; crate::conn::buffers::SIZE];
        let bufs = [&[b'h'; 4 * 1024][..], &block, &block].map(IoSlice::new);
        let tickets = session.connection.wants_write();
        assert!(!tickets, "they are written with the handshake");
        let taken = session.encrypt(&bufs).unwrap();
        assert_eq!(taken, 4 * 1024 + block.len());
        assert_eq!(session.encrypt(&bufs).unwrap(), 0, "it is full");
        let mut records = Records::default();
        while session.connection.wants_write() {
            session.connection.write_tls(&mut records).unwrap();
        }
        assert!(
            records.0.iter().all(|length| *length <= 16 * 1024),
            "{records:?}"
        );
        assert_eq!(records.0.len(), 2, "{records:?}");
        drop(read);
    }

    /// The lengths of the records that are written.
    #[derive(Debug, Default)]
    struct Records(Vec<usize>);

    impl Write for Records {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(buf)])
        }

        fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
            self.0.extend(bufs.iter().map(|buf| buf.len()));
            Ok(bufs.iter().map(|buf| buf.len()).sum())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// CONN-5: what was encrypted beside something else, and waits for the socket, is not encrypted
    /// again where it comes alone.
    #[test]
    fn what_is_on_its_way_is_not_encrypted_again() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().build().unwrap();
        let content: Vec<u8> = (0..251).cycle().take(8_000_000).collect();
        let (session, stream, read) = established();
        let (all, given) = runtime.block_on(async {
            let mut io = Io::plain(TcpStream::from_std(stream).unwrap());
            io.begin_tls(session);
            let untold = |io: &mut Io| io.tls().unwrap().0.untold;
            let mut given = 0;
            std::future::poll_fn(|cx| {
                while untold(&mut io) == 0 || given == 0 {
                    let (first, second) = content[given..given + 32_000].split_at(20_000);
                    let two = [first, second].map(IoSlice::new);
                    match io.poll_write(cx, &two, true) {
                        Poll::Ready(taken) => given += taken.unwrap(),
                        Poll::Pending => break,
                    }
                }
                Poll::Ready(())
            })
            .await;
            let end = given + untold(&mut io);
            assert!(end > given, "something waits for the socket");
            let reading = std::thread::spawn(read);
            while given < end {
                let rest = [IoSlice::new(&content[given..end])];
                let write = |cx: &mut Context<'_>| io.poll_write(cx, &rest, true);
                given += std::future::poll_fn(write).await.unwrap();
            }
            let (session, stream) = io.tls().unwrap();
            let flush = |cx: &mut Context<'_>| session.poll_flush(stream, cx);
            std::future::poll_fn(flush).await.unwrap();
            drop(io);
            (reading.join().unwrap(), given)
        });
        assert_eq!(all.len(), given);
        assert!(content.starts_with(&all));
    }
}
