//! How many bytes wait at the other end of a connection, as its system says.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};

use super::wait_until;

/// sock_diag(7): `SOCK_DIAG_BY_FAMILY`, a request, of TCP over IPv4, in any state, any cookie.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const INET: u8 = 2;
const TCP: u8 = 6;
const ANY_STATE: u32 = u32::MAX;
const NO_COOKIE: u32 = u32::MAX;
/// Where a `inet_diag_msg` has `idiag_rqueue`, behind the head of the message.
const UNREAD_AT: usize = 16 + 4 + 48 + 4;

/// The two ends of a connection, seen from the other one. /proc/net/tcp has them too, and lists the
/// whole system's for each look.
#[derive(Clone, Copy)]
pub(crate) struct OtherEnd {
    /// None where it was gone already.
    own: Option<SocketAddr>,
    toward: SocketAddr,
}

impl OtherEnd {
    #[track_caller]
    pub(crate) fn of(stream: &TcpStream) -> Self {
        Self {
            own: stream.peer_addr().ok(),
            toward: stream.local_addr().expect("an address"),
        }
    }

    /// Bytes that it has not read; none where there is no such end.
    #[track_caller]
    pub(crate) fn unread(self) -> Option<u32> {
        let question = question(self.own?, self.toward);
        let system = diagnostics();
        send(&system, &question, SendFlags::empty()).expect("asks");
        let mut answer = [0; 512];
        let (length, _) = recv(&system, &mut answer, RecvFlags::empty()).expect("an answer");
        let kind = u16::from_ne_bytes([answer[4], answer[5]]);
        let unread = answer[..length].get(UNREAD_AT..UNREAD_AT + 4)?;
        (kind == BY_FAMILY).then(|| u32::from_ne_bytes(unread.try_into().expect("four bytes")))
    }

    /// Waits until it has read all that was sent.
    #[track_caller]
    pub(crate) fn wait_until_read(self) {
        wait_until("the other end to read", || self.unread() == Some(0));
    }
}

fn question(own: SocketAddr, toward: SocketAddr) -> Vec<u8> {
    let mut question = vec![0; 4];
    question.extend(BY_FAMILY.to_ne_bytes());
    question.extend(REQUEST.to_ne_bytes());
    question.extend([0; 8]);
    question.extend([INET, TCP, 0, 0]);
    question.extend(ANY_STATE.to_ne_bytes());
    question.extend(own.port().to_be_bytes());
    question.extend(toward.port().to_be_bytes());
    for address in [own.ip(), toward.ip()] {
        let IpAddr::V4(address) = address else {
            panic!("{address} is not IPv4");
        };
        question.extend(address.octets());
        question.extend([0; 12]);
    }
    for word in [0, NO_COOKIE, NO_COOKIE] {
        question.extend(u32::to_ne_bytes(word));
    }
    let length = u32::try_from(question.len()).expect("short");
    question[..4].copy_from_slice(&length.to_ne_bytes());
    question
}

#[track_caller]
fn diagnostics() -> OwnedFd {
    let diagnostics = Some(netlink::SOCK_DIAG);
    socket(AddressFamily::NETLINK, SocketType::RAW, diagnostics).expect("a socket")
}
