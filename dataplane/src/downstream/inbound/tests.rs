use std::collections::VecDeque;
use std::sync::Arc;

use hyper::rt::ReadBuf as HyperBuf;
use proptest::prelude::*;

use super::*;

/// A connection that has these pieces, and then nothing.
struct Client {
    pieces: VecDeque<Vec<u8>>,
    inbound: Inbound,
    upload: Upload,
}

impl Client {
    fn new(pieces: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self {
            pieces: pieces.into_iter().collect(),
            inbound: Inbound::new(Bytes::new()),
            upload: Upload::default(),
        }
    }

    /// What one read with so much room brings; none where nothing has come.
    fn read(&mut self, room: usize) -> Option<io::Result<Vec<u8>>> {
        let mut space = vec![0; room];
        let mut buf = HyperBuf::new(&mut space);
        let pieces = &mut self.pieces;
        let polled = self.inbound.poll_read(
            &mut Context::from_waker(std::task::Waker::noop()),
            buf.unfilled(),
            &self.upload,
            |_, out| {
                let Some(piece) = pieces.front_mut() else {
                    return Poll::Pending;
                };
                let fits = piece.len().min(out.remaining());
                out.put_slice(&piece.drain(..fits).collect::<Vec<_>>());
                if piece.is_empty() {
                    pieces.pop_front();
                }
                Poll::Ready(Ok(()))
            },
        );
        match polled {
            Poll::Pending => None,
            Poll::Ready(outcome) => Some(outcome.map(|()| buf.filled().to_vec())),
        }
    }

    /// All that comes without a word of what follows a head.
    fn read_all(&mut self, room: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !matches!(self.inbound.at, At::BehindHead)
            && let Some(read) = self.read(room)
        {
            all.extend(read.expect("well framed"));
        }
        all
    }
}

/// CONN-9: hyper gets a head and not a byte more, however its lines end and however it is cut.
#[test]
fn a_head_ends_with_its_first_empty_line() {
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nA: \r b\r\n\n",
    ] {
        let whole = [head, "5\r\nhello\r\n0\r\n\r\n"].concat().into_bytes();
        for cut in 1..whole.len() {
            let (one, other) = whole.split_at(cut);
            let mut client = Client::new([one.to_vec(), other.to_vec()]);
            assert_eq!(
                client.read_all(8192),
                head.as_bytes(),
                "{head:?} cut at {cut}"
            );
            client.inbound.begin_body(Framing::Chunked);
            assert_eq!(client.read_all(8192).last(), Some(&b'\n'));
            assert!(matches!(client.inbound.at, At::Head(HeadEnd::Before)));
        }
    }
}

/// CONN-9: the chunks that one read brings go on as one, and their framing is counted.
#[test]
fn small_chunks_go_on_as_one() {
    let body = [b"1\r\na\r\n".repeat(1000).as_slice(), b"0\r\nX: y\r\n\r\n"].concat();
    let mut client = Client::new([b"POST / HTTP/1.1\r\n\r\n".to_vec(), body]);
    client.read_all(8192);
    client.inbound.begin_body(Framing::Chunked);
    let expected = format!("3e8\r\n{}\r\n0\r\nx: y\r\n\r\n", "a".repeat(1000));
    assert_eq!(client.read_all(8192), expected.as_bytes());
    let framing = 5 * 1000 + "0\r\nX: y\r\n\r\n".len();
    client.upload.take(1, None);
    client.upload.add_framing(64 * 1024 + 4 - framing);
    assert!(client.upload.framing_fits());
    client.upload.add_framing(1);
    assert!(!client.upload.framing_fits());
}

/// CONN-1: what hyper has of a chunked body is not held beside it, however long the next chunk is
/// in coming.
#[test]
fn chunks_that_hyper_has_are_not_held() {
    let chunk = [b"2000\r\n", &[b'a'; 0x2000][..], b"\r\n"].concat();
    let mut client = Client::new([b"POST / HTTP/1.1\r\n\r\n".to_vec(), chunk.clone()]);
    client.read_all(8192);
    client.inbound.begin_body(Framing::Chunked);
    assert_eq!(client.read_all(32 * 1024), chunk);
    assert_eq!(client.inbound.framed.capacity(), 0);
}

/// What is not framed as RFC 9112 §7.1 says is no body, and nothing of it comes twice.
#[test]
fn wrong_chunks_are_an_error() {
    for body in [
        "x\r\n",
        "1\r\nab\r\n",
        "1\na\r\n",
        "-1\r\n",
        "1;\n",
        "0\r\nx y: z\r\n\r\n",
    ] {
        let mut client = Client::new([b"POST / HTTP/1.1\r\n\r\n".to_vec(), body.into()]);
        client.read_all(8192);
        client.inbound.begin_body(Framing::Chunked);
        let error = client.read(8192).expect("it came").expect_err(body);
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}

#[derive(Clone, Debug)]
struct Message {
    head: String,
    content: Vec<u8>,
    /// Sizes of its chunks; none where it is sized.
    chunks: Option<Vec<usize>>,
}

impl Message {
    fn framing(&self) -> Framing {
        match (&self.chunks, self.content.len()) {
            (Some(_), _) => Framing::Chunked,
            (None, 0) => Framing::Empty,
            (None, length) => Framing::Sized(length as u64),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone().into_bytes();
        let Some(sizes) = &self.chunks else {
            bytes.extend(&self.content);
            return bytes;
        };
        let (mut rest, mut sizes) = (&self.content[..], sizes.iter().cycle());
        while !rest.is_empty() {
            let size = sizes.next().map_or(1, |size| *size).min(rest.len());
            let (chunk, behind) = rest.split_at(size);
            bytes.extend(format!("{size:x};a=b\r\n").into_bytes());
            bytes.extend(chunk);
            bytes.extend(b"\r\n");
            rest = behind;
        }
        bytes.extend(b"0\r\n\r\n");
        bytes
    }
}

fn message() -> impl Strategy<Value = Message> {
    let head = prop_oneof![
        Just("GET / HTTP/1.1\r\n\r\n".to_owned()),
        Just("\r\nPOST / HTTP/1.1\r\nA: b\r\n\r\n".to_owned()),
        Just("POST / HTTP/1.1\nA: b\n\n".to_owned()),
    ];
    let content = prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), any::<u8>()], 0..400);
    let chunks = prop::option::of(prop::collection::vec(1..60_usize, 1..5));
    (head, content, chunks).prop_map(|(head, content, chunks)| Message {
        head,
        content,
        chunks,
    })
}

/// Takes the chunks of what hyper gets apart, with the decoder that is tested by itself.
fn content_of(mut framed: Vec<u8>) -> Vec<u8> {
    let mut decoder = Decoder::chunked();
    let decoded = decoder.decode(&mut framed).expect("our own framing");
    assert!(decoder.is_end() && decoded.consumed == framed.len());
    framed[decoded.content].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// CONN-9: whatever follows whatever, however it is cut and however little room there is, each
    /// head and each body comes as it was sent, and nothing of the next one with it.
    #[test]
    fn messages_come_one_by_one(
        messages in prop::collection::vec(message(), 1..6),
        cuts in prop::collection::vec(1..300_usize, 1..8),
        room in 64..600_usize,
    ) {
        let whole: Vec<u8> = messages.iter().flat_map(Message::bytes).collect();
        let (mut pieces, mut rest, mut cuts) = (Vec::new(), &whole[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(cuts.next().map_or(1, |cut| *cut).min(rest.len()));
            pieces.push(piece.to_vec());
            rest = behind;
        }
        let mut client = Client::new(pieces);
        for message in &messages {
            prop_assert_eq!(client.read_all(room), message.head.as_bytes());
            client.inbound.begin_body(message.framing());
            let mut body = Vec::new();
            loop {
                let has_ended = match message.framing() {
                    Framing::Empty => true,
                    Framing::Sized(_) => body.len() == message.content.len(),
                    Framing::Chunked => body.ends_with(b"0\r\n\r\n") && client.inbound.framed.is_empty()
                        && matches!(client.inbound.at, At::Head(_)),
                };
                if has_ended {
                    break;
                }
                let read = client.read(room).expect("more is to come");
                body.extend(read.expect("well framed"));
            }
            let content = match message.framing() {
                Framing::Chunked => content_of(body),
                _ => body,
            };
            prop_assert_eq!(&content, &message.content);
        }
        prop_assert!(client.read(room).is_none());
    }
}

/// CONN-1: what was read before hyper asked is given back once hyper has it, also where it is no
/// whole head.
#[test]
fn what_hyper_has_is_not_held_beside_it() {
    struct Early(Arc<[u8]>);
    impl AsRef<[u8]> for Early {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let held: Arc<[u8]> = (*b"GET / HTTP/1.1\r\nA: b\r\nC: d").into();
    let early = Early(Arc::clone(&held));
    let mut client = Client::new([]);
    client.inbound = Inbound::new(Bytes::from_owner(early));
    for (room, wanted, holders) in [(16, "GET / HTTP/1.1\r\n", 2), (100, "A: b\r\nC: d", 1)] {
        let read = client.read(room).expect("something was there");
        assert_eq!(read.expect("well framed"), wanted.as_bytes());
        assert_eq!(Arc::strong_count(&held), holders, "{wanted:?}");
    }
}
