//! A client as clients.json holds it (section 8 of the specification), until the state files bring their own form.

use serde_json::{Value, json};
use weir_shared::table::ClientRow;
use weir_shared::units::Time;
use weir_shared::window::{Span, Window};

/// One client.
pub(crate) fn client_json(row: &ClientRow) -> Value {
    let mut client = json!({
        "client": row.client,
        "first_seen": row.first_seen,
        "last_seen": row.last_seen,
    });
    if let (Some(members), Some(lookup)) = (client.as_object_mut(), &row.lookup) {
        members.insert("lookup".to_owned(), json!(lookup));
    }
    if let Some(members) = client.as_object_mut() {
        members.insert("passed".to_owned(), row.passed.into());
        members.insert("refused".to_owned(), row.refused.into());
        members.insert("requests".to_owned(), windows(&row.requests));
        members.insert("bytes".to_owned(), windows(&row.bytes));
    }
    client
}

fn windows(windows: &[Window; 3]) -> Value {
    Span::ALL
        .into_iter()
        .zip(windows)
        .map(|(span, window)| {
            let members = json!({
                "start": Time(window.start_ms),
                "current": window.current,
                "previous": window.previous,
            });
            (span.name().to_owned(), members)
        })
        .collect()
}
