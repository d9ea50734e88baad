//! Counts, over the link.

use redis::Value;

use super::{Link, Script, array, number, strange, text};
use crate::fleet::counts::{Batch, Merged};
use crate::fleet::engine::{CountEngine, CountKind, Fault};
use crate::fleet::stamp::Origin;

const MERGE: &str = include_str!("merge.lua");

impl CountEngine for Link {
    fn merge(
        &mut self,
        me: &Origin,
        kind: CountKind,
        generation: &str,
        found: &str,
        batch: Option<&Batch>,
    ) -> Result<Merged, Fault> {
        let deltas = batch.map_or(&[][..], |batch| &batch.deltas);
        let seq = batch.map_or(0, |batch| batch.seq);
        let mut keys = vec![self.key(kind.numbers())];
        let mut arguments = vec![
            me.as_str().into(),
            seq.to_string().into_bytes(),
            generation.into(),
            found.into(),
        ];
        for delta in deltas {
            keys.push(self.key(&format!(
                "{}:{}",
                kind.name(),
                data_encoding::BASE64URL_NOPAD.encode(&delta.name)
            )));
            arguments.push(delta.bytes.clone());
            arguments.push(delta.keep.as_millis().to_string().into_bytes());
        }
        let answer = self.run(&Script {
            text: MERGE,
            keys,
            arguments,
        })?;
        let parts = array(answer)?;
        let [generation, last, sums @ ..] = parts.as_slice() else {
            return Err(strange());
        };
        let sum = |sum: &Value| match sum {
            Value::BulkString(bytes) => Ok(bytes.clone()),
            _ => Err(strange()),
        };
        let generation = text(generation)?;
        if generation.len() != 8 {
            return Err(strange());
        }
        Ok(Merged {
            generation,
            last: number(last)?,
            sums: sums.iter().map(sum).collect::<Result<_, _>>()?,
        })
    }
}
