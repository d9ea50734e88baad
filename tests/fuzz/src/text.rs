//! Bytes as text.

/// For the message of an assertion.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
