//! Each kind of fault of what sections MATCH, SHARE and APP add to rules.json has its sentence.

use super::*;

/// A file with one entry of a list that has this name and these members.
fn file(list: &str, members: &str) -> String {
    format!("{{\"version\":1,\n\"{list}\":[{{\"name\":\"a\",{members}}}]}}")
}

/// The file, and pointer and sentence of its only fault.
type Case = (String, String, &'static str);

fn limit(members: &str, place: &str, sentence: &'static str) -> Case {
    let pointer = format!("/limits/0{place}");
    (file("limits", members), pointer, sentence)
}

fn minutely(members: &str, place: &str, sentence: &'static str) -> Case {
    limit(&format!("\"per_minute\":1,{members}"), place, sentence)
}

fn jail(members: &str, place: &str, sentence: &'static str) -> Case {
    let pointer = format!("/jails/0{place}");
    (file("jails", members), pointer, sentence)
}

fn denial(members: &str, place: &str, sentence: &'static str) -> Case {
    let pointer = format!("/denials/0{place}");
    (file("denials", members), pointer, sentence)
}

/// `match` of a denial.
fn matching(members: &str, place: &str, sentence: &'static str) -> Case {
    let members = format!("\"match\":{{{members}}}");
    denial(&members, &format!("/match{place}"), sentence)
}

fn exempt(members: &str, place: &str, sentence: &'static str) -> Case {
    let pointer = format!("/exempt/0{place}");
    (file("exempt", members), pointer, sentence)
}

#[track_caller]
fn judge(cases: impl IntoIterator<Item = Case>) {
    for (text, place, sentence) in cases {
        let fault = Reader::new().read(text.as_bytes()).expect_err(&text);
        let told = (fault.line, &*fault.pointer, &*fault.message);
        assert_eq!(told, (2, &*place, sentence), "{text}");
        assert!(fault.further.is_empty(), "{text}: {fault}");
    }
}

const PER: &str = r#"expected "client", "netblock", "asn", "country", "all" or {"field": NAME}"#;
const WINDOWS: &str =
    r#"expected at least one of "per_second", "per_minute", "per_hour" and "per_day""#;
const NUMBER: &str = "expected a whole number from 1";
const WRITES: &str = "expected \"paths\", \"countries\", \"asns\", \"list\" or a verified \"crawler\": all else is what a client writes, which could write itself free";

/// RULE-2, SHARE-1, SHARE-2, SHARE-4: of limits.
#[test]
fn faults_of_limits_have_their_sentences() {
    judge([
        limit("\"path\":\"/\"", "", WINDOWS),
        limit("\"per_second\":0", "/per_second", NUMBER),
        limit("\"per_minute\":\"5\"", "/per_minute", NUMBER),
        limit("\"per_hour\":1.5", "/per_hour", NUMBER),
        limit("\"per_day\":null", "/per_day", NUMBER),
        limit("\"per_day\":99999999999999999999", "/per_day", NUMBER),
        minutely("\"per\":\"city\"", "/per", PER),
        minutely("\"per\":\"All\"", "/per", PER),
        minutely("\"per\":5", "/per", PER),
        minutely("\"per\":null", "/per", PER),
        minutely("\"per\":{}", "/per", PER),
        minutely("\"per\":[\"all\"]", "/per", PER),
        minutely("\"per\":\"field\"", "/per", PER),
        minutely("\"per\":{\"fields\":\"a\"}", "/per", PER),
        minutely("\"per\":{\"field\":5}", "/per", PER),
        minutely("\"per\":{\"field\":\"a\",\"x\":1}", "/per", PER),
        minutely(
            "\"per\":{\"field\":\"a b\"}",
            "/per/field",
            "\"a b\" is not the name of a field: expected one such as x-api-key",
        ),
        minutely(
            "\"on_limit\":\"drop\"",
            "/on_limit",
            "expected \"ban\" or \"refuse\"",
        ),
        minutely(
            "\"on_limit\":5",
            "/on_limit",
            "expected \"ban\" or \"refuse\"",
        ),
        minutely(
            "\"per\":\"all\",\"on_limit\":\"ban\"",
            "/on_limit",
            "nobody in particular breaks this limit: expected \"refuse\"",
        ),
        minutely(
            "\"per\":\"all\",\"spare_known\":10",
            "/spare_known",
            "expected a duration such as 10m, or off",
        ),
        minutely(
            "\"per\":\"all\",\"spare_known\":\"on\"",
            "/spare_known",
            "\"on\" is not a duration: expected a duration such as 500ms, 90s, 1h30m or 7d",
        ),
        minutely(
            "\"per\":\"all\",\"spare_known\":\"0s\"",
            "/spare_known",
            "\"0s\" is out of range: expected 1ms to 365d, or off",
        ),
        minutely(
            "\"spare_known\":\"10m\"",
            "/spare_known",
            "known clients have a second count where clients share one: expected another \"per\" than \"client\"",
        ),
        minutely(
            "\"per\":\"netblock\",\"on_limit\":\"ban\",\"spare_known\":\"10m\"",
            "/spare_known",
            "a limit that bans spares nobody: expected \"on_limit\": \"refuse\"",
        ),
        minutely("\"match\":5", "/match", "expected an object"),
        minutely("\"match\":[]", "/match", "expected an object"),
        minutely("\"match\":null", "/match", "expected an object"),
        minutely(
            "\"until\":5",
            "/until",
            "expected RFC 3339 such as 2026-11-21T16:00:00Z",
        ),
        minutely(
            "\"until\":\"x\"",
            "/until",
            "\"x\" is not a time: expected RFC 3339 such as 2026-11-21T16:00:00Z",
        ),
        minutely("\"comment\":5", "/comment", "expected a text"),
    ]);
}

/// MATCH-1, MATCH-2: of `match`.
// long: a table
#[test]
fn faults_of_match_have_their_sentences() {
    const PATH: &str = "expected a path that begins with / and has no blank, ?, # or \\";
    const QUERY: &str =
        r#"expected "present", "absent" or a list of 1 to 64 names of 1 to 256 characters"#;
    let many = |entry: &str, count: usize| [entry].repeat(count).join(",");
    judge([
        matching(
            "",
            "",
            r#"expected at least one of "paths", "exact", "exact_case", "methods", "host", "user_agent", "user_agent_file", "fields", "query", "countries", "asns", "list" and "crawler""#,
        ),
        matching(
            "\"regex\":\"x\"",
            "/regex",
            r#""regex" is no member here: expected one of "paths", "exact", "exact_case", "methods", "host", "user_agent", "user_agent_file", "fields", "query", "countries", "asns", "list" and "crawler""#,
        ),
        matching(
            "\"path\":\"/\"",
            "/path",
            "\"path\" is no member here; did you mean \"paths\"?",
        ),
        matching("\"paths\":\"/x\"", "/paths", "expected a list"),
        matching("\"paths\":[]", "/paths", "expected 1 to 64 entries"),
        matching(
            &format!("\"paths\":[{}]", many("\"/a\"", 65)),
            "/paths",
            "expected 1 to 64 entries",
        ),
        matching("\"paths\":[5]", "/paths/0", PATH),
        matching("\"paths\":[\"\"]", "/paths/0", PATH),
        matching("\"paths\":[\"x\"]", "/paths/0", PATH),
        matching(
            "\"paths\":[\"/x?y\"]",
            "/paths/0",
            "\"/x?y\" is not a path: expected one that begins with / and has no blank, ?, # or \\",
        ),
        matching(
            "\"paths\":[\"/a\"],\"exact\":1",
            "/exact",
            "expected true or false",
        ),
        matching("\"exact\":true", "/exact", "\"exact\" needs \"paths\""),
        matching(
            "\"exact_case\":true",
            "/exact_case",
            "\"exact_case\" needs \"paths\"",
        ),
        matching("\"methods\":\"GET\"", "/methods", "expected a list"),
        matching("\"methods\":[]", "/methods", "expected 1 to 32 entries"),
        matching(
            "\"methods\":[\"G T\"]",
            "/methods/0",
            "expected a method such as GET",
        ),
        matching("\"host\":\"\"", "/host", "expected 1 to 255 characters"),
        matching("\"host\":5", "/host", "expected a text"),
        matching(
            "\"host\":\"*.x\"",
            "/host",
            "\"*.x\" is not a host: expected one name or address as a client sends it, such as www.example.com, without wildcards",
        ),
        matching("\"user_agent\":\"bot\"", "/user_agent", "expected a list"),
        matching(
            "\"user_agent\":[]",
            "/user_agent",
            "expected 1 to 10000 entries",
        ),
        matching(
            "\"user_agent\":[5]",
            "/user_agent/0",
            "expected a text of 3 to 256 bytes",
        ),
        matching(
            "\"user_agent\":[\"ai\"]",
            "/user_agent/0",
            "\"ai\" is too short: expected 3 to 256 bytes, because it is looked for anywhere in the field",
        ),
        matching(
            "\"user_agent_file\":\"\"",
            "/user_agent_file",
            "expected 1 to 4096 characters",
        ),
        matching(
            "\"user_agent_file\":5",
            "/user_agent_file",
            "expected a text",
        ),
        matching(
            "\"user_agent_file\":\"a\\u0000b\"",
            "/user_agent_file",
            "expected the name of a file, without a NUL",
        ),
        matching("\"fields\":{}", "/fields", "expected a list"),
        matching("\"fields\":[]", "/fields", "expected 1 to 8 entries"),
        matching(
            &format!(
                "\"fields\":[{}]",
                many("{\"name\":\"a\",\"is\":\"absent\"}", 9)
            ),
            "/fields",
            "expected 1 to 8 entries",
        ),
        matching("\"fields\":[5]", "/fields/0", "expected an object"),
        matching(
            "\"fields\":[{\"name\":\"a\"}]",
            "/fields/0",
            "expected \"is\" or \"has\", and no more than one",
        ),
        matching(
            "\"fields\":[{\"name\":\"a\",\"is\":\"absent\",\"has\":\"bot\"}]",
            "/fields/0",
            "expected \"is\" or \"has\", and no more than one",
        ),
        matching(
            "\"fields\":[{\"is\":\"absent\"}]",
            "/fields/0",
            "expected a member \"name\"",
        ),
        matching(
            "\"fields\":[{\"name\":\"a\",\"is\":\"there\"}]",
            "/fields/0/is",
            "expected \"absent\" or \"present\"",
        ),
        matching(
            "\"fields\":[{\"name\":\":path\",\"is\":\"absent\"}]",
            "/fields/0/name",
            "\":path\" is not the name of a field: expected one such as accept-language",
        ),
        matching(
            "\"fields\":[{\"name\":\"a\",\"has\":5}]",
            "/fields/0/has",
            "expected a text of 3 to 256 bytes",
        ),
        matching("\"query\":\"here\"", "/query", QUERY),
        matching("\"query\":[]", "/query", QUERY),
        matching("\"query\":[\"\"]", "/query", QUERY),
        matching("\"query\":{}", "/query", QUERY),
        matching("\"countries\":\"DE\"", "/countries", "expected a list"),
        matching(
            "\"countries\":[5]",
            "/countries/0",
            "expected two letters, such as \"DE\", or \"unknown\"",
        ),
        matching(
            "\"countries\":[\"DEU\"]",
            "/countries/0",
            "\"DEU\" is not a country: expected two letters, such as DE, or unknown",
        ),
        matching("\"asns\":[]", "/asns", "expected 1 to 10000 entries"),
        matching(
            "\"asns\":[64496]",
            "/asns/0",
            "expected a text such as \"AS64496\", or \"unknown\"",
        ),
        matching(
            "\"asns\":[\"AS0\"]",
            "/asns/0",
            "\"AS0\" is not an AS number: expected one such as AS64496, or unknown",
        ),
        matching("\"list\":\"drop\"", "/list", "no feed is named \"drop\""),
        matching(
            "\"list\":\"A b\"",
            "/list",
            "expected 1 to 32 small letters, digits, _ and -",
        ),
        matching(
            "\"crawler\":5",
            "/crawler",
            "expected a word or a list of 1 to 64 words",
        ),
        matching(
            "\"crawler\":\"x\"",
            "/crawler",
            "no crawler is named \"x\": expected a name, verified, fake, unproven, or a purpose",
        ),
    ]);
}

/// MATCH-3, MATCH-4, APP-2: of denials, exempt entries and jails.
#[test]
fn faults_of_the_other_rules_have_their_sentences() {
    const ANSWER: &str = "expected a status from 400 to 599, or \"drop\"";
    const NAME: &str = "expected 1 to 32 small letters, digits, _ and -";
    let answer = |answer: &str| {
        let members = format!("\"match\":{{\"paths\":[\"/\"]}},\"answer\":{answer}");
        denial(&members, "/answer", ANSWER)
    };
    judge(["200", "403.5", "\"403\"", "\"close\"", "null"].map(answer));
    let entries = |list: &'static str, of: &str, text: String| {
        let text = format!("{{\"version\":1,\n\"{list}\":{text}}}");
        (text, format!("/{list}{of}"))
    };
    let many = |members: &str, count: usize| {
        let one = |number| format!("{{\"name\":\"a{number}\",{members}}}");
        format!("[{}]", (0..count).map(one).collect::<Vec<_>>().join(","))
    };
    let any = "\"match\":{\"paths\":[\"/\"]}";
    let with = |(text, place): (String, String), sentence| (text, place, sentence);
    judge([
        denial("\"answer\":403", "", "expected a member \"match\""),
        denial(
            &format!("{any},\"anser\":403"),
            "/anser",
            "\"anser\" is no member here; did you mean \"answer\"?",
        ),
        exempt(
            &format!("{any},\"answer\":403"),
            "/answer",
            "\"answer\" is no member here: expected one of \"name\", \"match\", \"until\" and \"comment\"",
        ),
        exempt("\"match\":{\"user_agent\":[\"curl\"]}", "/match", WRITES),
        exempt("\"match\":{\"crawler\":\"fake\"}", "/match", WRITES),
        exempt(
            "\"match\":{\"paths\":[\"/x\"],\"exact_case\":true}",
            "/match/exact_case",
            "what lets requests through always minds capital and small letters",
        ),
        jail("\"statuses\":[404]", "", WINDOWS),
        jail(
            "\"per_day\":1,\"statuses\":[]",
            "/statuses",
            "expected 1 to 64 entries",
        ),
        jail(
            "\"per_day\":1,\"statuses\":[\"404\"]",
            "/statuses/0",
            "expected a whole number from 100 to 599",
        ),
        jail(
            "\"per_day\":1,\"statuses\":[99]",
            "/statuses/0",
            "expected a whole number from 100 to 599",
        ),
        jail(
            "\"per_day\":1,\"statuses\":404",
            "/statuses",
            "expected a list",
        ),
        jail(
            "\"per_day\":1,\"ban\":\"all\"",
            "/ban",
            "expected \"client\" or \"netblock\"",
        ),
        with(
            entries("denials", "/0", "[5]".to_owned()),
            "expected an object",
        ),
        with(entries("denials", "", "{}".to_owned()), "expected a list"),
        with(
            entries("denials", "", many(any, 65)),
            "expected at most 64 entries",
        ),
        with(
            entries("exempt", "", many(any, 65)),
            "expected at most 64 entries",
        ),
        with(
            entries("limits", "", many("\"per_day\":1", 17)),
            "expected at most 16 entries",
        ),
        with(
            entries(
                "denials",
                "/0/name",
                format!("[{{\"name\":\"A b\",{any}}}]"),
            ),
            NAME,
        ),
        with(
            entries("denials", "/0/name", format!("[{{\"name\":5,{any}}}]")),
            NAME,
        ),
    ]);
}

/// RULE-1: a text that is no JSON, and JSON that is no object.
#[test]
fn a_text_that_is_no_file_has_its_sentence() {
    for (text, told) in [
        ("", "the text ends too early: expected all of a JSON object"),
        (
            "{\"version\":1",
            "the text ends too early: expected all of a JSON object",
        ),
        ("x", "expected a JSON value"),
        ("[]", "expected an object"),
        ("5", "expected an object"),
    ] {
        assert_eq!(message(text).1, told, "{text}");
    }
}
