//! Reads a request's path: its normal form, whether a prefix matches it, and whether it is one of
//! the service's own.
//!
//! Pure, and without an allocation for an ordinary path. Settings and requests go through the same
//! functions, so that no spelling of a path can pass as exempt wrongly. The ladder decides what
//! follows.
//!
//! The two questions need different caution. [`normalise`] and [`is_exempt`] follow RFC 3986; where
//! an application might read a path in another way, it is not exempt. [`is_own`] asks what *any*
//! application could make of the path (decoding twice, `\` as a slash, `;` as parameters, blanks
//! and dots at a segment's end cut, slashes merged), because a path under `/_waf/` must never
//! arrive there (CHECK-1). The rules that restrict ask the same of their own paths
//! (`rules/spelling.rs`, RULE-7).

use std::borrow::Cow;

/// The reserved prefix, as the service itself writes it.
pub const OWN_PREFIX: &str = "/_waf/";

/// The first segment of every path of the service.
const OWN_SEGMENT: &[u8; 4] = b"_waf";

/// Whether the service must answer the path itself, however it is spelled (CHECK-1).
///
/// True for every path that could enter `/_waf` in any reading, even if it leaves it again:
/// `/_waf/../x`.
pub fn is_own(path: &str) -> bool {
    let bytes = path.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'_' | b'%')) {
        return false;
    }
    let mut depth = Depth::default();
    let mut segment = Segment::default();
    for (byte, literal) in loosely(bytes) {
        match byte {
            b'/' | b'\\' => {
                if segment.is_own_at(&depth) {
                    return true;
                }
                depth.enter(&segment, literal && byte == b'/');
                segment = Segment::default();
            }
            _ => segment.push(byte),
        }
    }
    segment.is_own_at(&depth)
}

/// Whether the path has the exact form of the service's routes: `/_waf/…` without an empty or dot
/// segment, in any decoding. Other spellings of an own path are answered 404.
pub fn own_path_exact(path: &str) -> bool {
    let Some(rest) = path.strip_prefix(OWN_PREFIX) else {
        return false;
    };
    let mut segment = Segment::default();
    for (byte, _) in loosely(rest.as_bytes()) {
        match byte {
            b'/' | b'\\' => {
                if segment.is_empty() || segment.is_dots() {
                    return false;
                }
                segment = Segment::default();
            }
            _ => segment.push(byte),
        }
    }
    !segment.is_dots()
}

/// Whether one of the normalised `prefixes` covers the path by whole segments: `/static` covers
/// `/static` and `/static/a`, not `/staticx`. The empty prefix, which is how `/` is kept, covers
/// every path.
///
/// A path that an application could still climb out of (`/static/..%2fadmin`, `/static//../admin`)
/// is not exempt: one slash would take a request past the limits.
pub fn is_exempt(path: &str, prefixes: &[String]) -> bool {
    if prefixes.is_empty() {
        return false;
    }
    Strictly::read(path).is_below(prefixes)
}

/// The first prefix that makes the path exempt ([`is_exempt`]).
pub fn exempt_by<'p>(path: &str, prefixes: &'p [String]) -> Option<&'p str> {
    let path = Strictly::read(path);
    let mut prefixes = prefixes.iter().map(std::slice::from_ref);
    let prefix = prefixes.find(|prefix| path.is_below(prefix))?.first()?;
    Some(prefix)
}

/// A request's path in the strict reading of rules that exempt: parsed once, for any number of
/// rules.
#[derive(Debug)]
pub struct Strictly<'a> {
    path: &'a str,
    normal: Cow<'a, str>,
}

impl<'a> Strictly<'a> {
    /// Reads a path as written.
    pub fn read(path: &'a str) -> Self {
        Self {
            path,
            normal: normalise(path),
        }
    }

    /// Whether one of the prefixes covers it ([`is_exempt`]).
    pub fn is_below(&self, prefixes: &[String]) -> bool {
        prefixes.iter().any(|prefix| covers(prefix, &self.normal)) && !may_climb(self.path)
    }

    /// Whether it is one of these paths, with a slash at its end or without.
    pub fn is_one_of(&self, paths: &[String]) -> bool {
        let stem = self.normal.strip_suffix('/').unwrap_or(&self.normal);
        paths.iter().any(|path| path == stem) && !may_climb(self.path)
    }
}

/// A path of a rule as a prefix for [`is_exempt`]: normalised, without a slash at its end.
pub fn prefix(path: &str) -> String {
    normalise(path).trim_end_matches('/').to_owned()
}

/// Whether a prefix without a slash at its end covers a path by whole segments.
fn covers(prefix: &str, path: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether some reading may climb higher than the RFC's: the path has a `..`, and something that
/// applications read differently. Checked on the path as received, because the normal form no
/// longer has segments that a `..` removed: `/static/a%2f../../x`.
fn may_climb(path: &str) -> bool {
    let bytes = path.as_bytes();
    let plain = !bytes.iter().any(|b| matches!(b, b'%' | b'\\' | b';'))
        && !path.contains("//")
        && !path.contains("...");
    if plain {
        return false;
    }
    let mut segment = Segment::default();
    for (byte, _) in loosely(bytes) {
        match byte {
            b'/' | b'\\' => {
                if segment.is_parent() {
                    return true;
                }
                segment = Segment::default();
            }
            _ => segment.push(byte),
        }
    }
    segment.is_parent()
}

/// The path with percent-encoded unreserved characters decoded, other escapes in upper case, and
/// dot segments resolved (RFC 3986 §6.2.2). Borrowed if it is in that form already. Paths that do
/// not begin with a slash (`*`) stay as they are.
pub fn normalise(path: &str) -> Cow<'_, str> {
    if !path.starts_with('/') || is_normal(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(without_dot_segments(&decoded_unreserved(path)))
}

/// Whether [`normalise`] would change nothing; one scan.
fn is_normal(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        match rest {
            [] => return true,
            [b'/', b'.'] | [b'/', b'.', b'.'] => return false,
            [b'/', b'.', b'/', ..] | [b'/', b'.', b'.', b'/', ..] => return false,
            [b'%', high, low, ..] if escape(*high, *low).is_some() => {
                let lower = high.is_ascii_lowercase() || low.is_ascii_lowercase();
                if lower || escape(*high, *low).is_some_and(is_unreserved) {
                    return false;
                }
            }
            _ => {}
        }
        rest = rest.get(1..).unwrap_or_default();
    }
}

fn decoded_unreserved(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        rest = after;
        match *after.as_bytes() {
            [high, low, ..] => match escape(high, low) {
                Some(byte) => {
                    if is_unreserved(byte) {
                        text.push(char::from(byte));
                    } else {
                        text.push('%');
                        text.push(char::from(high.to_ascii_uppercase()));
                        text.push(char::from(low.to_ascii_uppercase()));
                    }
                    rest = after.get(2..).unwrap_or_default();
                }
                None => text.push('%'),
            },
            _ => text.push('%'),
        }
    }
    text.push_str(rest);
    text
}

/// `remove_dot_segments` of RFC 3986 §5.2.4, for a path that begins with a slash.
fn without_dot_segments(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." => {}
            ".." => text.truncate(text.rfind('/').unwrap_or(0)),
            _ => {
                text.push('/');
                text.push_str(segment);
                continue;
            }
        }
        // A final dot segment leaves a directory: its slash stays.
        if segments.peek().is_none() {
            text.push('/');
        }
    }
    text
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn escape(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// The bytes after decoding twice, each with whether it was literal.
pub(crate) fn loosely(bytes: &[u8]) -> impl Iterator<Item = (u8, bool)> {
    Decoded(Decoded(bytes.iter().map(|byte| (*byte, true))))
}

/// One pass of percent-decoding over bytes that may come from another pass.
#[derive(Clone)]
struct Decoded<I>(I);

impl<I: Iterator<Item = (u8, bool)> + Clone> Iterator for Decoded<I> {
    type Item = (u8, bool);

    fn next(&mut self) -> Option<(u8, bool)> {
        let first = self.0.next()?;
        if first.0 != b'%' {
            return Some(first);
        }
        let mut ahead = self.0.clone();
        if let (Some((high, _)), Some((low, _))) = (ahead.next(), ahead.next())
            && let Some(byte) = escape(high, low)
        {
            self.0 = ahead;
            return Some((byte, false));
        }
        Some(first)
    }
}

/// Whether some application cuts this byte at the end of a segment: a dot, a blank or a control
/// character.
pub(crate) const fn is_cut(byte: u8) -> bool {
    byte == b'.' || byte <= b' ' || byte == 0x7f
}

/// The facts about a segment that the questions here need, from the bytes before its parameters.
#[derive(Default)]
struct Segment {
    /// The first bytes.
    start: [u8; 4],
    length: usize,
    /// How many of the first bytes remain if blanks and dots at the end are cut.
    stem: usize,
    dots: usize,
    parameters: bool,
}

impl Segment {
    fn push(&mut self, byte: u8) {
        // An application that decodes before it splits ends the path at a decoded `?`, `#` or NUL.
        self.parameters |= matches!(byte, b';' | b'?' | b'#' | 0);
        if self.parameters {
            return;
        }
        if let Some(place) = self.start.get_mut(self.length) {
            *place = byte.to_ascii_lowercase();
        }
        self.length += 1;
        self.dots += usize::from(byte == b'.');
        if !is_cut(byte) {
            self.stem = self.length;
        }
    }

    fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn is_parent(&self) -> bool {
        self.stem == 0 && self.dots > 1
    }

    /// Whether some application reads it as `.` or `..`, or as empty.
    fn is_dots(&self) -> bool {
        self.stem == 0 && !self.is_empty()
    }

    fn is_own_at(&self, depth: &Depth) -> bool {
        self.stem == OWN_SEGMENT.len() && self.start == *OWN_SEGMENT && depth.lowest == 0
    }
}

/// The least depth of a segment below the root, over every reading of the path.
///
/// Readings differ in what separates segments: `a%2fb` is one segment or two. Every `..` counts as
/// one level up, and the text between two literal slashes as at most one level down, so no reading
/// is less deep than `lowest`. Paths for which this is too careful (`/a%2fb/../_waf`) get a 404.
#[derive(Default)]
struct Depth {
    lowest: usize,
    /// Whether a segment since the last literal slash was counted.
    counted: bool,
}

impl Depth {
    fn enter(&mut self, segment: &Segment, literal_slash: bool) {
        if segment.is_parent() {
            self.lowest = self.lowest.saturating_sub(1);
        } else if !segment.is_empty() && !segment.is_dots() && !self.counted {
            self.lowest += 1;
            self.counted = true;
        }
        // Parameters may reach as far as the next literal slash: `/;%2fa%2f_waf`.
        self.counted |= segment.parameters;
        if literal_slash {
            self.counted = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CHECK-1: every spelling of a path under `/_waf/` is the service's.
    #[test]
    fn an_own_path_is_known_however_it_is_written() {
        for own in [
            "/_waf",
            "/_waf/",
            "/_waf/x",
            "//_waf/x",
            "/%5fwaf/x",
            "/%5Fwaf/x",
            "/x/../_waf/x",
            "/_WAF/x",
            "/_Waf",
            "/_waf;a=b/x",
            "/;a/_waf/x",
            "/_waf%2fx",
            "/%2f_waf/x",
            "/%255fwaf/x",
            "/%25%35%66waf/x",
            "/x/%2e%2e/_waf/x",
            "/x/%252e%252e/_waf/x",
            "/x/..%2f_waf/x",
            "/x/..;/_waf/x",
            "/x%2fy/../_waf/x",
            "\\_waf\\x",
            "/x\\..\\_waf",
            "/./_waf/x",
            "/a//../_waf/x",
            "/a/b/../../../_waf",
            "/_waf/health/../../x",
            "/_waf/../x",
            "/_waf%3fx",
            "/;%252Fa%2f_waf",
            "_waf/x",
            "/_waf./x",
            "/_waf../x",
            "/_waf%20/x",
            "/_waf%2e",
            "/_waf%252E%2520/x",
            "/_waf.;a/x",
            "/_waf%09",
            "/_waf%00.html",
            "/x/..%20/_waf",
            "/%20/_waf",
            "/x/.../_waf./y",
        ] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "/",
            "/x",
            "*",
            "",
            "/x/_waf",
            "/x/_waf/y",
            "/_wafx",
            "/x_waf",
            "/_wa",
            "/_waf.html",
            "/_waf%20x",
            "/_.waf",
            "/%5fwafx",
            "/a%20b/_waf",
            "/x/../y/_waf",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    /// CHECK-1: only the canonical spelling is routed.
    #[test]
    fn only_the_canonical_spelling_is_exact() {
        for exact in [
            "/_waf/health",
            "/_waf/bans/2001:db8::1",
            "/_waf/bans/10.0.0.0%2f24",
            "/_waf/",
        ] {
            assert!(own_path_exact(exact), "{exact}");
        }
        for other in [
            "/_waf",
            "//_waf/x",
            "/%5fwaf/x",
            "/_WAF/x",
            "/x/../_waf/x",
            "/_waf/health/../../x",
            "/_waf/./x",
            "/_waf//x",
            "/_waf/%2e%2e/x",
            "/_waf/x%2f..",
            "/_waf/%20/x",
            "/_waf/..%20",
            "/_waf/..;/x",
        ] {
            assert!(!own_path_exact(other), "{other}");
        }
    }

    /// CHECK: exempt prefixes match whole segments of the normalised path.
    #[test]
    fn exempt_prefixes_match_whole_segments() {
        let prefixes = ["/static".to_owned(), "/a/b".to_owned()];
        for exempt in [
            "/static",
            "/static/",
            "/static/a",
            "/%73tatic/a",
            "/x/../static/a",
            "/a/./b",
            "/static/a%20b;v=1",
        ] {
            assert!(is_exempt(exempt, &prefixes), "{exempt}");
        }
        for counted in [
            "/staticx",
            "/stati",
            "/static/../x",
            "/static/%2e%2e/x",
            "/Static",
            "/a",
            "/static/..%2fx",
            "/static/..;/x",
            "/static/%252e%252e/x",
            "/static/..\\x",
            // What the RFC's reading takes back, another never entered.
            "/static//../x",
            "/static/a/.///../../x",
            "/static/;/../x",
            "/static/.;/../x",
            "/static/a%2f../../x",
            "/static/%5c/../x",
            "/static/..%20/x",
            "/static/.../x",
        ] {
            assert!(!is_exempt(counted, &prefixes), "{counted}");
        }
        assert!(is_exempt("/anything", &[String::new()]));
        assert!(!is_exempt("/anything", &[]));
    }

    /// CHECK: escapes of unreserved characters and dot segments are resolved, the rest stays.
    #[test]
    fn normal_forms() {
        for (path, normal) in [
            ("/a/%7euser", "/a/~user"),
            ("/a%2fb", "/a%2Fb"),
            ("/a/./b/../c", "/a/c"),
            ("/a/..", "/"),
            ("/..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/a//../b", "/a/b"),
            ("/%2e%2e/a", "/a"),
            ("/%252e", "/%252e"),
            ("/100%", "/100%"),
            ("/%zz/%4", "/%zz/%4"),
            ("/ä/%41", "/ä/A"),
            ("*", "*"),
        ] {
            assert_eq!(normalise(path), normal, "{path}");
        }
    }

    #[test]
    fn ordinary_paths_are_not_copied() {
        for path in [
            "/",
            "/index.html",
            "/.well-known/x",
            "/a%20b/..c/d..",
            "/a//b",
            "*",
        ] {
            assert!(matches!(normalise(path), Cow::Borrowed(_)), "{path}");
        }
    }

    /// RFC 3986 §5.2.4 as its text has it, step by step.
    fn remove_dot_segments_twin(path: &str) -> String {
        let (mut input, mut output) = (path.to_owned(), String::new());
        while !input.is_empty() {
            if input.starts_with("/./") {
                input.replace_range(..3, "/");
            } else if input == "/." {
                input = "/".to_owned();
            } else if input.starts_with("/../") {
                input.replace_range(..4, "/");
                output.truncate(output.rfind('/').unwrap_or(0));
            } else if input == "/.." {
                input = "/".to_owned();
                output.truncate(output.rfind('/').unwrap_or(0));
            } else {
                let end = input[1..].find('/').map_or(input.len(), |at| at + 1);
                output.push_str(&input[..end]);
                input.replace_range(..end, "");
            }
        }
        output
    }

    fn decode_twin(path: &str, which: impl Fn(u8) -> bool) -> String {
        let bytes = path.as_bytes();
        let (mut at, mut text) = (0, Vec::new());
        while at < bytes.len() {
            let code = path
                .get(at + 1..at + 3)
                .filter(|_| bytes[at] == b'%')
                .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
                .map(|hex| u8::from_str_radix(hex, 16).unwrap());
            match code {
                Some(code) if which(code) => text.push(code),
                Some(_) => text.extend(path[at..at + 3].to_ascii_uppercase().bytes()),
                None => text.push(bytes[at]),
            }
            at += if code.is_some() { 3 } else { 1 };
        }
        String::from_utf8(text).unwrap()
    }

    /// One reading of a path, as some application might make it: whether it ever stands in `/_waf`.
    fn enters_own(path: &str, decodings: u8, [backslash, cut, merge, trim]: [bool; 4]) -> bool {
        let mut path = decode_twin(path, is_unreserved);
        for _ in 0..decodings {
            path = decode_twin(&path, |byte| byte.is_ascii());
        }
        if backslash {
            path = path.replace('\\', "/");
        }
        let mut stack: Vec<&str> = Vec::new();
        for segment in path.split('/').skip(1) {
            let segment = if cut {
                segment.split(';').next().unwrap()
            } else {
                segment
            };
            let end = |letter: char| letter == '.' || letter <= ' ';
            let segment = match segment.trim_end_matches(end) {
                _ if !trim => segment,
                "" if segment.matches('.').count() > 1 => "..",
                stem => stem,
            };
            match segment {
                "." => {}
                "" if merge => {}
                ".." => {
                    stack.pop();
                }
                _ => stack.push(segment),
            }
            if stack
                .first()
                .is_some_and(|s| s.eq_ignore_ascii_case("_waf"))
            {
                return true;
            }
        }
        false
    }

    fn path_of(pieces: &[&'static str]) -> impl Strategy<Value = String> + use<> {
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..9)
            .prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    const PIECES: &[&str] = &[
        "/", "/", "/", ".", "..", "a", "b", "_waf", "_WAF", "%5fwaf", "%255fwaf", "%2e", "%2E%2e",
        "%252e", "%2f", "%252F", "\\", "%5c", ";", "%3b", "%", "%4", "é", "%25", "%20",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16384))]

        /// The normal form agrees with the RFC's text, is normal itself, and is borrowed exactly if
        /// nothing changed.
        #[test]
        fn normalise_agrees_with_its_naive_twin(path in path_of(PIECES)) {
            let twin = remove_dot_segments_twin(&decode_twin(&path, is_unreserved));
            let normal = normalise(&path);
            prop_assert_eq!(&normal, &twin);
            prop_assert_eq!(matches!(normal, Cow::Borrowed(_)), twin == path);
            prop_assert!(matches!(normalise(&twin), Cow::Borrowed(_)), "{} is not normal", twin);
        }

        /// CHECK-1: no reading of a path that is not own ends under `/_waf`.
        #[test]
        fn no_reading_of_a_forwarded_path_is_own(path in path_of(PIECES)) {
            if !is_own(&path) {
                for decodings in 0..=2 {
                    for bits in 0..16 {
                        let reading = [1, 2, 4, 8].map(|bit| bits & bit > 0);
                        prop_assert!(!enters_own(&path, decodings, reading));
                    }
                }
            }
        }

        /// CHECK-1: a path with nothing to decode and only one reading is own exactly if it enters
        /// `/_waf`.
        #[test]
        fn plain_paths_are_judged_exactly(path in path_of(&["/", "/", "/", ".", "..", "a", "_waf", "_WAF", "x_waf"])) {
            let entered = [true, false].map(|trim| enters_own(&path, 0, [false, false, true, trim]));
            prop_assert_eq!(is_own(&path), entered.contains(&true));
        }

        /// CHECK-1: a path that is routed to the service's endpoints is the service's.
        #[test]
        fn exact_own_paths_are_own(path in path_of(PIECES)) {
            if own_path_exact(&path) {
                prop_assert!(is_own(&path));
                prop_assert!(path.starts_with("/_waf/"));
            }
        }

        /// An exempt path stays under its prefix in every reading.
        #[test]
        fn exempt_paths_cannot_climb_out(tail in path_of(PIECES)) {
            let path = format!("/static{tail}");
            if is_exempt(&path, &["/static".to_owned()]) {
                let loose = decode_twin(&decode_twin(&normalise(&path), |b| b.is_ascii()), |b| b.is_ascii());
                prop_assert!(!loose.split(['/', '\\']).any(|s| s.split(';').next() == Some("..")), "{}", loose);
            }
        }

        /// Whole segments against a naive comparison of segment lists.
        #[test]
        fn covers_agrees_with_segment_lists(path in path_of(&["/", "a", "b"]), prefix in path_of(&["/", "a", "b"])) {
            let segments = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
            let prefix = prefix.trim_end_matches('/');
            prop_assert_eq!(covers(prefix, &path), segments(&path).starts_with(&segments(prefix)));
        }

        #[test]
        fn no_text_panics(path in "\\PC*") {
            let _ = (is_own(&path), own_path_exact(&path), normalise(&path));
        }
    }
}
