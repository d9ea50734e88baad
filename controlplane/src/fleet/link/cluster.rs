//! Finds the node of a cluster that has the fleet's keys, all of which lie in one slot. A node is
//! asked again for each connection, so that after a failover, or after the slot has moved, the next
//! connection goes to the right node; until then every answer is a fault.

use redis::Value;

use super::access::{Access, Place};
use super::wire::{Wire, fault};
use super::{array, key, number, strange, text};
use crate::fleet::engine::Fault;

impl Access {
    /// Asks one node after the other, and opens a connection to the one that has the slot.
    pub(super) fn in_cluster(&self, places: &[(String, u16)], tls: bool) -> Result<Wire, Fault> {
        let mut why = Fault("no node of the cluster is named".to_owned());
        for (host, port) in places {
            let found = self
                .owner(host, *port, tls)
                .and_then(|place| self.open_owner(&place));
            match found {
                Ok(connection) => return Ok(connection),
                Err(Fault(fault)) => why = Fault(format!("the node {host}:{port}: {fault}")),
            }
        }
        Err(why)
    }

    /// Opens a connection to the node that this one names. A node may be out of date, so the named
    /// node must confirm that it has the slot.
    fn open_owner(&self, place: &Place) -> Result<Wire, Fault> {
        let mut connection = Wire::open(self, place)?;
        let mut probe = redis::cmd("TYPE");
        let probe = probe.arg(key(&self.fleet, "log"));
        let _: Value = probe.query(&mut connection).map_err(fault)?;
        Ok(connection)
    }

    /// The node that has the slot, according to this one.
    fn owner(&self, host: &str, port: u16, tls: bool) -> Result<Place, Fault> {
        let mut connection = Wire::open(self, &Place::Tcp(host.to_owned(), port, tls))?;
        let mut slot_of = redis::cmd("CLUSTER");
        slot_of.arg("KEYSLOT").arg(key(&self.fleet, "log"));
        let slot = number(&slot_of.query(&mut connection).map_err(fault)?)?;
        let mut slots = redis::cmd("CLUSTER");
        let ranges = slots.arg("SLOTS").query(&mut connection).map_err(fault)?;
        for range in array(ranges)? {
            let range = array(range)?;
            let [first, last, master, ..] = range.as_slice() else {
                return Err(strange());
            };
            if !(number(first)?..=number(last)?).contains(&slot) {
                continue;
            }
            let master = array(master.clone())?;
            let [name, port, ..] = master.as_slice() else {
                return Err(strange());
            };
            // A node that does not know its own name has the host that was connected to.
            let name = match name {
                Value::Nil => String::new(),
                name => text(name)?,
            };
            let name = if name.is_empty() {
                host.to_owned()
            } else {
                name
            };
            let port = u16::try_from(number(port)?).map_err(|_| strange())?;
            return self.told(name, port, tls);
        }
        Err(Fault(format!(
            "no node has the slot {slot}, which is that of the fleet"
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A node that says that this port has every slot, and answers so when it is asked for a key.
    fn node(owner: impl FnOnce(u16) -> u16, of_key: &'static [u8]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let owner = owner(port);
        let answer = move |asked: &[u8]| {
            let has = |word: &[u8]| asked.windows(word.len()).any(|window| window == word);
            if has(b"KEYSLOT") {
                b":7\r\n".to_vec()
            } else if has(b"SLOTS") {
                let all = ":0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n";
                format!("*1\r\n*3\r\n{all}:{owner}\r\n").into_bytes()
            } else {
                of_key.to_vec()
            }
        };
        let serve = move |mut stream: TcpStream| {
            let mut asked = [0; 1024];
            while let Ok(read @ 1..) = stream.read(&mut asked) {
                stream.write_all(&answer(&asked[..read])).unwrap();
            }
        };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || serve(stream.unwrap()));
            }
        });
        port
    }

    /// FLEET-2: a node that is behind, and one whose reply leads to no answering node, are skipped;
    /// if no other is left, the fault has the last node's reply.
    #[test]
    fn nodes_that_are_behind_are_passed_over() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = free.local_addr().unwrap().port();
        drop(free);
        let behind = node(|itself| itself, b"-MOVED 7 127.0.0.1:1\r\n");
        let lost = node(|_| gone, b"");
        let owner = node(|itself| itself, b"+none\r\n");
        let ask = |ports: &[u16]| {
            let place = |port: &u16| ("127.0.0.1".to_owned(), *port);
            let places: Vec<_> = ports.iter().map(place).collect();
            Access::to(owner).in_cluster(&places, false)
        };
        // An answer may be late on a busy machine: the nodes are asked again then.
        assert!((0..5).any(|_| ask(&[behind, lost, gone, owner]).is_ok()));
        let why = ask(&[lost, behind]).err().unwrap().0;
        let told = format!("the node 127.0.0.1:{behind}: ");
        assert!(why.starts_with(&told), "{why}");
    }
}
