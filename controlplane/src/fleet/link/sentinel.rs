//! Finds the engine by Sentinels: the master that they name. They are asked again for each
//! connection, so that after a failover the next one goes to the new master.

use redis::Value;

use super::access::{Access, Place};
use super::wire::{Wire, fault};
use super::{array, strange, text};
use crate::fleet::engine::Fault;

impl Access {
    /// Asks one Sentinel after the other, and opens a connection to the first named master that
    /// confirms its role.
    pub(super) fn by_sentinels(
        &self,
        places: &[(String, u16)],
        name: &str,
        tls: bool,
    ) -> Result<Wire, Fault> {
        let mut why = Fault("no Sentinel is named".to_owned());
        for (host, port) in places {
            let sentinel = Place::Tcp(host.clone(), *port, tls);
            let found = self
                .master(&sentinel, name, tls)
                .and_then(|place| self.connect_to_master(&place));
            match found {
                Ok(connection) => return Ok(connection),
                Err(Fault(fault)) => why = Fault(format!("the Sentinel {host}:{port}: {fault}")),
            }
        }
        Err(why)
    }

    fn master(&self, sentinel: &Place, name: &str, tls: bool) -> Result<Place, Fault> {
        let mut connection = Wire::open(self, sentinel)?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(name);
        let answer = command.query(&mut connection).map_err(fault)?;
        if answer == Value::Nil {
            return Err(Fault(format!("it knows no engine {name:?}")));
        }
        let [host, port] = <[Value; 2]>::try_from(array(answer)?).map_err(|_| strange())?;
        let (host, port) = (text(&host)?, text(&port)?);
        let port: u16 = port.parse().map_err(|_| strange())?;
        self.told(host, port, tls)
    }

    fn connect_to_master(&self, place: &Place) -> Result<Wire, Fault> {
        let mut connection = Wire::open(self, place)?;
        let answer = redis::cmd("ROLE").query(&mut connection).map_err(fault)?;
        let role = array(answer)?.into_iter().next().ok_or_else(strange)?;
        match text(&role)?.as_str() {
            "master" => Ok(connection),
            role => Err(Fault(format!("the engine that it names is a {role}"))),
        }
    }
}
