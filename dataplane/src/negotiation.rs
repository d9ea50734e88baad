//! Whether an answer is to be a page for people or a document for programs (RFC 9110 §12.5.1).

/// Whether the lines of `Accept` prefer HTML to JSON. Where both are wanted alike, the one that is
/// named more exactly is preferred, as browsers of all ages name HTML; and JSON where nothing says
/// otherwise.
pub fn prefers_html<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> bool {
    // What programs send, at a glance.
    let first = match (lines.next(), lines.next()) {
        (None | Some(b"*/*"), None) => return false,
        (first, second) => first.into_iter().chain(second),
    };
    prefers_html_by_weight(first.chain(lines))
}

fn prefers_html_by_weight<'a>(lines: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut html, mut problem, mut json) = <(Weight, Weight, Weight)>::default();
    let ranges = lines.flat_map(|line| line.split(|byte| *byte == b','));
    for range in ranges {
        let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let Some((main, sub)) = parts.next().and_then(split_slash) else {
            continue;
        };
        let Some(quality) = quality(parts) else {
            continue;
        };
        html.take(main, sub, (b"text", b"html"), quality);
        problem.take(main, sub, (b"application", b"problem+json"), quality);
        json.take(main, sub, (b"application", b"json"), quality);
    }
    let json = if problem.order() > json.order() {
        problem
    } else {
        json
    };
    html.quality > 0 && html.order() > json.order()
}

/// How much a media type is wanted, as the most exact range says that has it.
#[derive(Clone, Copy, Default)]
struct Weight {
    /// `*/*`, `text/*` or `text/html`; 0 where no range has it.
    exactness: u8,
    /// Thousandths.
    quality: u16,
}

impl Weight {
    fn take(&mut self, main: &[u8], sub: &[u8], (our_main, our_sub): (&[u8], &[u8]), quality: u16) {
        let any_sub = sub == b"*";
        let exactness = if main == b"*" && any_sub {
            1
        } else if !main.eq_ignore_ascii_case(our_main) {
            return;
        } else if any_sub {
            2
        } else if sub.eq_ignore_ascii_case(our_sub) {
            3
        } else {
            return;
        };
        if exactness > self.exactness {
            *self = Self { exactness, quality };
        }
    }

    const fn order(self) -> (u16, u8) {
        (self.quality, self.exactness)
    }
}

fn split_slash(range: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = range.iter().position(|byte| *byte == b'/')?;
    let (main, sub) = range.split_at(slash);
    Some((main, sub.get(1..)?))
}

/// The quality that the parameters of a range give, in thousandths; none where it is no quality.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> Option<u16> {
    let value = parameters.find_map(|parameter| match parameter {
        [b'q' | b'Q', b'=', value @ ..] => Some(value),
        _ => None,
    });
    match value {
        None => Some(1000),
        Some([b'1']) => Some(1000),
        Some([b'1', b'.', zeros @ ..]) => {
            (zeros.len() <= 3 && zeros.iter().all(|digit| *digit == b'0')).then_some(1000)
        }
        Some([b'0']) => Some(0),
        Some([b'0', b'.', digits @ ..]) if digits.len() <= 3 => {
            let mut value = 0;
            for place in 0..3 {
                let digit = digits.get(place).copied().unwrap_or(b'0');
                value = value * 10 + u16::from(digit.is_ascii_digit().then(|| digit - b'0')?);
            }
            Some(value)
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefers(lines: &[&str]) -> bool {
        prefers_html(lines.iter().map(|line| line.as_bytes()))
    }

    /// TELL-1: browsers get a page, programs a document.
    #[test]
    fn browsers_get_a_page() {
        for html in [
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8",
            "text/html, application/xhtml+xml, */*",
            "text/html",
            "text/*;q=0.9, application/json;q=0.8",
            "application/json;q=0.5, text/HTML; level=1; Q=0.6",
            "text/html, */*; q=0.01",
            "*/*;q=0.1, application/*;q=0.3, text/html;q=0.4",
        ] {
            assert!(prefers(&[html]), "{html}");
        }
        for json in [
            "",
            "*/*",
            "application/json",
            "application/json, text/plain, */*",
            "application/problem+json, text/html;q=0.9",
            "text/html, application/json",
            "text/html;q=0, */*",
            "text/html;q=0.000, image/png",
            "text/html;q=2, */*;q=0.1",
            "text/html;q=0.5, */*;q=0.6",
            "text/html;q=abc",
            "text/plain, image/*",
            "text/*;q=0.3, text/html;q=0.1, application/json;q=0.2",
            "html",
        ] {
            assert!(!prefers(&[json]), "{json}");
        }
        assert!(!prefers(&[]));
        // Lines are joined.
        assert!(prefers(&["application/json;q=0.1", "text/html;q=0.2"]));
        assert!(!prefers(&["text/html;q=0.1", "application/json"]));
    }
}
