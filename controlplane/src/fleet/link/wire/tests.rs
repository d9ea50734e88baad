//! Engines that lie. None of them needs a real one.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use super::*;

/// A place where somebody answers the first question like this, and what became of it.
fn engine<T: Send + 'static>(
    play: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (Access, Place, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let access = Access::to(port);
    let played = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]).unwrap();
        play(stream)
    });
    (
        access,
        Place::Tcp("127.0.0.1".to_owned(), port, false),
        played,
    )
}

fn ask(access: &Access, place: &Place) -> Result<Value, Fault> {
    let mut wire = Wire::open(access, place)?;
    redis::cmd("PING").query(&mut wire).map_err(fault)
}

/// The same of an answer that is judged by what comes, not by when.
fn ask_patiently(access: &Access, place: &Place) -> Result<Value, Fault> {
    let mut wire = Wire::open(access, place)?;
    wire.wait_longer(Duration::from_secs(60));
    redis::cmd("PING").query(&mut wire).map_err(fault)
}

/// How many bytes are taken of an answer without an end.
fn taken(beginning: &'static [u8]) -> (Result<Value, Fault>, usize) {
    let (access, place, played) = engine(move |mut stream| {
        stream.write_all(beginning).unwrap();
        let mut taken = beginning.len();
        while let Ok(written) = stream.write(&[b'x'; 64 << 10]) {
            taken += written;
        }
        taken
    });
    (ask(&access, &place), played.join().unwrap())
}

/// FLEET-2: of a too long answer only a bounded part is read, beside the bytes in the system's
/// buffer.
#[test]
fn an_answer_has_an_end() {
    for beginning in [
        &b"$536870912\r\n"[..],
        b"+",
        b"*2000000000\r\n$70000000\r\n",
    ] {
        let (answer, taken) = taken(beginning);
        // In a debug build the time may be over before the bytes are.
        let Err(Fault(why)) = answer else {
            panic!("{answer:?}");
        };
        let expected = ["an answer of more than 16 MiB", "no answer within 1 s"];
        assert!(expected.contains(&why.as_str()), "{why}");
        assert!(taken < MAX_ANSWER + (32 << 20), "{taken}");
    }
}

/// FLEET-2: an answer of many small values has its own bound, because each value takes some 170
/// bytes once it is read.
#[test]
fn an_answer_has_few_values() {
    let (access, place, played) = engine(|mut stream| {
        let values = b":1\r\n".repeat(16_000);
        stream.write_all(b"*4000000\r\n").unwrap();
        (0..250)
            .take_while(|_| stream.write_all(&values).is_ok())
            .count()
    });
    assert_eq!(
        ask_patiently(&access, &place),
        Err(Fault("an answer of more than 100000 lines".to_owned()))
    );
    assert!(played.join().unwrap() < 250, "it went away");
}

/// FLEET-2: an answer that arrives byte by byte has the same time-out as any other.
#[test]
fn an_answer_is_whole_in_time() {
    let (access, place, played) = engine(|mut stream| {
        let pause = Duration::from_millis(100);
        stream.write_all(b"$1000\r\n").unwrap();
        (0..1000)
            .take_while(|_| {
                std::thread::park_timeout(pause);
                stream.write_all(b"x").is_ok()
            })
            .count()
    });
    assert_eq!(
        ask(&access, &place),
        Err(Fault("no answer within 1 s".to_owned()))
    );
    assert!(played.join().unwrap() < 1000, "it went away");
}

/// FLEET-11: a caller that does other work meanwhile gets the answers one by one, in whatever
/// pieces the bytes arrive, and each with its own time-out.
#[test]
fn answers_come_in_pieces() {
    let (waits, waited) = std::sync::mpsc::channel();
    let (access, place, played) = engine(move |mut stream| {
        // Two answers and the beginning of a third, then its rest byte by byte, each after it was
        // waited for in vain, then silence.
        stream
            .write_all(b":7\r\n*2\r\n$3\r\nabc\r\n:1\r\n*2\r")
            .unwrap();
        for byte in b"\n$10\r\n0123456789\r\n+OK\r\n-ERR no\r\n" {
            waited.recv().unwrap();
            stream.write_all(&[*byte]).unwrap();
        }
        let _ = stream.read(&mut [0; 1024]);
    });
    let mut wire = Wire::open(&access, &place).unwrap();
    wire.wait_longer(Duration::from_secs(60));
    let (asked, _) = wire.ask(&redis::cmd("PING")).unwrap();
    let mut told = Vec::new();
    while told.len() < 4 {
        match wire.answer(asked, Duration::from_millis(5)) {
            Ok(Some((value, _))) => told.push(Ok(value)),
            // After the last byte nobody listens.
            Ok(None) => drop(waits.send(())),
            Err(error) => told.push(Err(fault(error))),
        }
    }
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    assert_eq!(
        told[..2],
        [
            Ok(Value::Int(7)),
            Ok(Value::Array(vec![text("abc"), Value::Int(1)])),
        ]
    );
    let slow = vec![text("0123456789"), Value::Okay];
    assert_eq!(told[2], Ok(Value::Array(slow)));
    assert!(told[3].is_err(), "{:?}", told[3]);
    wire.wait_longer(Duration::ZERO);
    let late = wire.answer(asked, Duration::from_secs(60));
    assert_eq!(
        late.map_err(fault),
        Err(Fault("no answer within 1 s".to_owned()))
    );
    drop(wire);
    played.join().unwrap();
}

/// FLEET-2: the error about an invalid answer is weir's own text, and the engine's text cannot
/// steer a terminal.
#[test]
fn what_is_no_answer_is_told_in_words() {
    let no_engine = "what is there does not answer as an engine does";
    for (answer, told) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            no_engine.to_owned(),
        ),
        (b"$abc\r\n", no_engine.to_owned()),
        (&[&b"*1\r\n"[..]; 10_000].concat(), no_engine.to_owned()),
        (
            b"-ERR \x1b[31mred\r\n",
            "ResponseError: ?[31mred".to_owned(),
        ),
    ] {
        let answer = answer.to_vec();
        let (access, place, played) = engine(move |mut stream| {
            let _ = stream.write_all(&answer);
            stream
        });
        let Err(Fault(why)) = ask_patiently(&access, &place) else {
            panic!("{told}");
        };
        assert!(why.contains(&told), "{why}");
        drop(played.join().unwrap());
    }
    let long = format!("-ERR {}\r\n", "a".repeat(5000));
    let (access, place, played) = engine(move |mut stream| {
        stream.write_all(long.as_bytes()).unwrap();
        stream
    });
    let Err(Fault(why)) = ask(&access, &place) else {
        panic!("an answer");
    };
    assert_eq!(why.chars().count(), MAX_WORDS);
    drop(played.join().unwrap());
}

/// FLEET-2: a hanging engine no longer accepts from the queue of its Unix socket. A connection to a
/// full queue waits as long as for an answer.
#[test]
fn a_full_queue_is_waited_for_no_longer_than_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let hangs = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    net::bind(&hangs, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    net::listen(&hangs, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let Err(Fault(why)) = Wire::open(&Access::to(1), &Place::Unix(path)) else {
        panic!("there was a place in the queue");
    };
    assert_eq!(why, "no answer within 1 s");
}
