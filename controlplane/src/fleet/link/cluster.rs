//! Where the engine is in a cluster: the node that has the keys of the fleet, all of which lie in
//! one slot. A node is asked for it anew for each connection, so that after a failover, or when the
//! slot has gone to another node, the next one goes there: until then every answer is a fault.

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
                .and_then(|place| Wire::open(self, &place));
            match found {
                Ok(connection) => return Ok(connection),
                Err(Fault(fault)) => why = Fault(format!("the node {host}:{port}: {fault}")),
            }
        }
        Err(why)
    }

    /// Which node has the slot, as this one knows.
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
            // A node that does not know its own name is called as it was.
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
