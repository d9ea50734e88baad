//! One entry as text.

use super::*;

/// One entry alone.
pub(crate) fn read<D: Document>(list: &str, entry: &Value) -> Result<D::Entry, String> {
    let schema = D::schema().as_ref().unwrap();
    understand::<D>(schema.list(list).unwrap(), entry.clone()).map_err(|(_, message)| message)
}
