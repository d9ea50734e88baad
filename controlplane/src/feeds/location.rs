//! Where a redirect leads, and whether it is followed (FEED-3).

use std::net::IpAddr;

use http::Uri;
use http::uri::PathAndQuery;

use super::resolve::Reach;
use super::wanted::FeedUrl;

/// The target of a redirect of a feed. The error, the end of a sentence, says why it is not
/// followed.
pub(super) fn follow(from: &FeedUrl, location: &str, reach: Reach) -> Result<FeedUrl, String> {
    if from.is_loopback() {
        return Err("and a feed on loopback follows none".to_owned());
    }
    let there = join(from.uri(), location).ok_or("which is no URL")?;
    if there.scheme() != from.uri().scheme() {
        return Err("which has another scheme".to_owned());
    }
    let there = FeedUrl::of(there).map_err(|why| format!("and {why}"))?;
    let is_literal = there.host().parse::<IpAddr>();
    if there.is_loopback() || is_literal.is_ok_and(|address| !reach.has(address)) {
        return Err("which is no public address".to_owned());
    }
    Ok(there)
}

/// Resolves a reference against the URL it came from (RFC 3986 §5.2). Dot segments stay in the
/// path: servers remove them.
fn join(from: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next().unwrap_or_default();
    if let Some(behind) = reference.strip_prefix("//") {
        return format!("{}://{behind}", from.scheme_str()?).parse().ok();
    }
    let is_absolute = reference.split(['/', '?']).next()?.contains(':');
    if is_absolute {
        return reference.parse().ok();
    }
    let path = match reference.chars().next() {
        Some('/') => reference.to_owned(),
        Some('?') => format!("{}{reference}", from.path()),
        Some(_) => {
            let folder = from
                .path()
                .rsplit_once('/')
                .map_or("", |(folder, _)| folder);
            format!("{folder}/{reference}")
        }
        None => return None,
    };
    let mut parts = from.clone().into_parts();
    parts.path_and_query = Some(path.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FEED-3: a redirect is followed only to the same scheme and to places that may be public.
    #[test]
    fn redirects_stay_outside() {
        let url = |text: &str| FeedUrl::try_from(text.to_owned()).unwrap();
        let from = url("https://lists.example/a/drop?x=1");
        for (location, there) in [
            ("https://other.example/drop", "https://other.example/drop"),
            ("//other.example/b?y#z", "https://other.example/b?y"),
            ("/b?y=/:", "https://lists.example/b?y=/:"),
            ("b", "https://lists.example/a/b"),
            ("?y", "https://lists.example/a/drop?y"),
            ("https://9.9.9.9/drop", "https://9.9.9.9/drop"),
        ] {
            let followed = follow(&from, location, Reach::Public);
            assert_eq!(followed.unwrap().uri().to_string(), there, "{location}");
        }
        for (location, why) in [
            ("http://lists.example/drop", "another scheme"),
            ("ftp://lists.example/drop", "another scheme"),
            ("https://10.0.0.1/drop", "no public address"),
            ("https://[fd00::1]/drop", "no public address"),
            ("https://[::ffff:10.0.0.1]/drop", "no public address"),
            ("https://127.0.0.1/drop", "no public address"),
            ("//localhost/drop", "no public address"),
            ("https://me@other.example/", "a name or a password"),
            ("https://", "no URL"),
            ("", "no URL"),
            ("two words", "no URL"),
        ] {
            let told = follow(&from, location, Reach::Public).unwrap_err();
            assert!(told.contains(why), "{location}: {told}");
        }
        let here = url("http://127.0.0.1:80/a");
        let told = follow(&here, "/b", Reach::Loopback).unwrap_err();
        assert!(told.contains("follows none"), "{told}");
    }
}
