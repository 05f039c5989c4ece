//! Which paths are forwarded: by table, and against a slow reading of the rule.

use proptest::prelude::*;
use zazen_forward_api::paths::{Prefix, Route, Text, local_of, normalize, prefixes, route};

const SETTINGS: &[u8] = b"/data:/far/x=/srv/y:/root=/";

fn ask(path: &str) -> (Route, String) {
    let all: Vec<Prefix<'_>> = prefixes(SETTINGS).collect();
    let mut out = Text::new();
    let route = route(path.as_bytes(), &all, &mut out);
    let told = matches!(route, Route::Far | Route::LocalAs);
    (route, if told { String::from_utf8_lossy(out.as_bytes()).into_owned() } else { String::new() })
}

fn check(path: &str, expected: Route, text: &str) {
    assert_eq!(ask(path), (expected, text.to_owned()), "{path}");
}

#[test]
fn paths_lead_where_they_should() {
    check("/data", Route::Far, "/data");
    check("/data/a/b", Route::Far, "/data/a/b");
    check("/database", Route::Local, "");
    check("/far/x/a", Route::Far, "/srv/y/a");
    check("/far/xy", Route::Local, "");
    check("/root/etc", Route::Far, "/etc");
    check("/root", Route::Far, "/");
    // The far side resolves what lies below a prefix …
    check("/data//a/./b/", Route::Far, "/data//a/./b/");
    check("/data/link/../b", Route::Far, "/data/link/../b");
    // … unless the path leaves the prefix, or enters it from outside.
    check("/data/../etc/passwd", Route::LocalAs, "/etc/passwd");
    check("/tmp/../far/x/a", Route::Far, "/srv/y/a");
    check("/data/../far/x", Route::Far, "/srv/y");
    check("//data/a", Route::Far, "/data/a");
    check("/etc/../tmp", Route::Local, "");
    check(&format!("/data/{}", "a".repeat(5000)), Route::TooLong, "");
    check(&format!("/tmp/{}", "a".repeat(5000)), Route::Local, "");
}

#[test]
fn far_names_have_names_here() {
    let all: Vec<Prefix<'_>> = prefixes(SETTINGS).collect();
    let mut out = Text::new();
    for (far, known, here) in
        [("/data/a", true, "/data/a"), ("/srv/y", true, "/far/x"), ("/srv/yy", true, "/root/srv/yy")]
    {
        assert_eq!(local_of(far.as_bytes(), &all, &mut out), known);
        assert_eq!(out.as_bytes(), here.as_bytes());
    }
}

/// Resolves `..` and `.` one by one.
fn slow(base: &str, path: &str) -> Vec<String> {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{base}/{path}") };
    let mut parts: Vec<String> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name.to_owned()),
        }
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn normal_paths_are_those_of_the_slow_rule(
        base in "(/[a-c]{1,2}){0,3}", path in "/?([.]{1,2}|[a-c]{1,2}|)(/([.]{1,2}|[a-c]{1,2}|)){0,6}",
    ) {
        let mut out = Text::new();
        prop_assert!(normalize(base.as_bytes(), path.as_bytes(), &mut out));
        let text = std::str::from_utf8(out.as_bytes()).unwrap();
        let parts: Vec<String> = text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        prop_assert_eq!(parts, slow(&base, &path));
        prop_assert!(text.starts_with('/') && !text.contains("//"));
    }
}
