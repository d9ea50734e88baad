//! The page that people see if a request is refused (TELL-1): a text with placeholders. The control
//! plane reads the file.

use std::borrow::Cow;

use crate::units::in_words;

/// The most bytes of a page: it is copied for each refusal that shows it, and must not take more
/// memory than a connection (CONN-1).
pub const MAX_BYTES: usize = 32 * 1024;
/// The most placeholders: their values are longer than their names.
const MAX_PLACES: usize = 64;

const BUILT_IN: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<meta name=\"robots\" content=\"noindex\">
<title>Request refused</title>
<style>body{font:1.1em sans-serif;max-width:36em;margin:4em auto;padding:0 1em}small{color:#666}</style>
<h1>Request refused</h1>
<p>This request was not let through. Please try again {{retry_after}}.</p>
<p><small>Status {{status}} &middot; request {{request_id}}</small></p>
</html>
";

/// Why a text cannot be the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageFault {
    /// It holds more than [`MAX_BYTES`].
    #[error("is longer than 32 KiB")]
    TooLong,
    /// It is no UTF-8.
    #[error("is not UTF-8")]
    NotUtf8,
    /// It holds nothing.
    #[error("is empty")]
    Empty,
    /// `{{…}}` with a word that stands for nothing.
    #[error(
        "has, in line {0}, {{{{…}}}} with a name other than status, request_id and retry_after"
    )]
    UnknownPlace(usize),
    /// More than [`MAX_PLACES`].
    #[error("has more than 64 places to be filled in")]
    TooManyPlaces,
}

/// A page, split at its placeholders.
#[derive(Debug)]
pub struct RefusalPage {
    pieces: Vec<(String, Option<Place>)>,
}

/// The value to insert after a piece of text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Status,
    RequestId,
    RetryAfter,
}

impl Default for RefusalPage {
    /// The small page that is built in.
    fn default() -> Self {
        Self::parse(BUILT_IN.as_bytes()).unwrap_or_else(|_| Self { pieces: Vec::new() })
    }
}

impl RefusalPage {
    /// Parses a page. Braces without a plain name inside are text, as in scripts and styles.
    ///
    /// # Errors
    /// [`PageFault`] says what is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, PageFault> {
        if text.len() > MAX_BYTES {
            return Err(PageFault::TooLong);
        }
        let text = std::str::from_utf8(text).map_err(|_| PageFault::NotUtf8)?;
        if text.trim().is_empty() {
            return Err(PageFault::Empty);
        }
        let mut pieces = Vec::new();
        let (mut piece, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            piece.push_str(before);
            match after.split_once("}}").filter(|(name, _)| is_name(name)) {
                Some((name, behind)) => {
                    let place = place(name.trim()).ok_or_else(|| {
                        let read = text.len() - after.len();
                        let lines = text.bytes().take(read).filter(|byte| *byte == b'\n');
                        PageFault::UnknownPlace(lines.count() + 1)
                    })?;
                    pieces.push((std::mem::take(&mut piece), Some(place)));
                    rest = behind;
                }
                None => {
                    piece.push_str("{{");
                    rest = after;
                }
            }
        }
        if pieces.len() > MAX_PLACES {
            return Err(PageFault::TooManyPlaces);
        }
        piece.push_str(rest);
        pieces.push((piece, None));
        Ok(Self { pieces })
    }

    /// The page of one refusal: `status`, the request's id, and the seconds after which a retry
    /// makes sense.
    pub fn fill(&self, status: u16, request_id: &str, retry_after: Option<u64>) -> Vec<u8> {
        let mut filled =
            Vec::with_capacity(self.pieces.iter().map(|(text, _)| text.len() + 32).sum());
        for (text, place) in &self.pieces {
            filled.extend_from_slice(text.as_bytes());
            match place {
                Some(Place::Status) => filled.extend_from_slice(status.to_string().as_bytes()),
                Some(Place::RequestId) => filled.extend_from_slice(escaped(request_id).as_bytes()),
                Some(Place::RetryAfter) => {
                    let words = retry_after.map_or(Cow::Borrowed("later"), |seconds| {
                        Cow::Owned(format!("in {}", in_words(seconds)))
                    });
                    filled.extend_from_slice(words.as_bytes());
                }
                None => {}
            }
        }
        filled
    }
}

fn is_name(text: &str) -> bool {
    let name = text.trim();
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn place(name: &str) -> Option<Place> {
    match name {
        "status" => Some(Place::Status),
        "request_id" => Some(Place::RequestId),
        "retry_after" => Some(Place::RetryAfter),
        _ => None,
    }
}

/// Escapes a text for HTML, also inside a quoted attribute.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str, id: &str, retry_after: Option<u64>) -> String {
        let page = RefusalPage::parse(text.as_bytes()).unwrap();
        String::from_utf8(page.fill(403, id, retry_after)).unwrap()
    }

    /// TELL-1: the three placeholders are replaced by text that is escaped for HTML.
    #[test]
    fn a_page_is_filled_in_and_escaped() {
        assert_eq!(
            fill(
                "{{status}} <a title=\"{{ request_id }}\">{{retry_after}}",
                r#"<"a'&>"#,
                Some(61)
            ),
            "403 <a title=\"&lt;&quot;a&#39;&amp;&gt;\">in 61 seconds"
        );
        assert_eq!(fill("{{retry_after}}", "a", None), "later");
        // A request id is no template.
        assert_eq!(fill("{{request_id}}", "{{status}}", None), "{{status}}");
        assert_eq!(fill("a{{{status}}}b{{", "a", None), "a{{{status}}}b{{");
        assert_eq!(
            fill("f={{a:1}}; {{}} {{ x y }}", "a", None),
            "f={{a:1}}; {{}} {{ x y }}"
        );
    }

    /// TELL-1: the error about an unusable page names the fault.
    #[test]
    fn a_faulty_page_is_told() {
        let fault = |text: &[u8]| RefusalPage::parse(text).map(drop).unwrap_err();
        assert_eq!(fault(b" \n"), PageFault::Empty);
        assert_eq!(fault(b"\xff"), PageFault::NotUtf8);
        assert_eq!(fault(b"a\n{{reason}}"), PageFault::UnknownPlace(2));
        assert_eq!(fault(&vec![b'a'; MAX_BYTES + 1]), PageFault::TooLong);
        assert_eq!(
            fault("{{status}}".repeat(65).as_bytes()),
            PageFault::TooManyPlaces
        );
        assert!(
            fault(b"{{x}}")
                .to_string()
                .starts_with("has, in line 1, {{…}} with a name")
        );
    }

    /// TELL-1: the placeholders of the built-in page can be replaced.
    #[test]
    fn the_page_that_is_built_in_is_one() {
        let page = RefusalPage::default().fill(429, "id-1", Some(60));
        let page = String::from_utf8(page).unwrap();
        assert!(
            page.contains("try again in 60 seconds")
                && page.contains("Status 429 &middot; request id-1")
        );
    }
}
