//! Whatever the text: no panic, and places that are within it. Whatever valid header: it is
//! accepted, and what is generated holds what it must.

use proptest::prelude::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Pieces of headers, glued in any order.
fn piece() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "/* START-ZAZEN-SCANNER ID=3 INIT=NULL FINI=NULL */",
        "/* END-ZAZEN-SCANNER */",
        "int",
        "unsigned",
        "long",
        "char",
        "void",
        "*",
        "**",
        "const",
        "struct x",
        "size_t",
        "f",
        "g",
        "(",
        ")",
        ",",
        ";",
        "{",
        "}",
        "[",
        "]",
        "4",
        "...",
        "/* in:obj */",
        "/* out:arr:size=+1:zerocopy */",
        "/* in:arr2d:size=-1 */",
        "/* inout:str:max=9 */",
        "/* in:ptr:nullok */",
        "/* errno blocking */",
        "/*",
        "*/",
        "//",
        "\n",
        "#if 1\n",
        "#endif\n",
        "typedef",
        "extern",
        "\"C\"",
        "static",
        "__attribute__((x))",
        "enum e",
        "=",
        "é",
        "\\\n",
        "'",
        "/* in:",
        ":size=",
        "+9",
        "handle",
        "volatile",
    ]);
    prop_oneof![8 => known.prop_map(str::to_owned), 1 => "\\PC{0,6}"]
}

fn check_any(text: &str) -> Result<(), TestCaseError> {
    if let Err(errors) = zazen_stubs::generate("any.h", text) {
        prop_assert!(!errors.is_empty());
        for error in errors {
            prop_assert!(error.line >= 1 && error.line <= text.matches('\n').count() + 1, "{error}");
            prop_assert!(error.column >= 1 && error.width >= 1 && !error.remedy.is_empty(), "{error}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn no_text_makes_it_panic(pieces in prop::collection::vec(piece(), 0..60), marked in any::<bool>()) {
        let start = if marked { "/* START-ZAZEN-SCANNER ID=3 INIT=NULL FINI=NULL */\n" } else { "" };
        check_any(&format!("{start}{}", pieces.join(" ")))?;
    }

    #[test]
    fn no_damage_to_a_valid_header_makes_it_panic(
        which in 0..HEADERS.len(), cut in any::<prop::sample::Index>(), length in 0usize..12, with in piece()
    ) {
        let text = HEADERS[which];
        let from = (0..=cut.index(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let to = (from + length..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        check_any(&format!("{}{with}{}", &text[..from], &text[to.max(from)..]))?;
    }
}

const HEADERS: &[&str] = &[
    include_str!("../headers/files.h"),
    include_str!("../headers/telescope.h"),
    include_str!("../headers/events.h"),
    include_str!("../headers/vectors.h"),
    include_str!("../headers/extras.h"),
];

const NUMBERS: &[&str] = &["int", "size_t", "uint32_t", "int64_t", "unsigned short", "uint8_t"];
const ELEMENTS: &[&str] =
    &["char", "double", "uint16_t", "struct point", "float", "int64_t", "unsigned char"];

/// One to three parameters that belong together, as (declaration, annotation).
fn group(index: usize) -> impl Strategy<Value = Vec<String>> {
    let number = prop::sample::select(NUMBERS);
    let element = prop::sample::select(ELEMENTS);
    let direction = prop::sample::select(&["in", "out", "inout"][..]);
    let zerocopy = prop::sample::select(&["", ":zerocopy"][..]);
    (number, element, direction, zerocopy, 0..7, any::<bool>()).prop_map(
        move |(number, element, direction, zerocopy, shape, flag)| {
            let nullok = if flag { ":nullok" } else { "" };
            match shape {
                0 => vec![format!("{number} p{index} /* in:obj */")],
                1 => vec![format!("{element} *p{index} /* {direction}:ptr{nullok} */")],
                2 => vec![format!("const char *p{index} /* in:str{nullok} */")],
                3 => vec![format!(
                    "char *p{index} /* {}:str:max=40{nullok} */",
                    if flag { "out" } else { "inout" }
                )],
                4 => vec![
                    format!("{element} *p{index} /* {direction}:arr:size=+1{zerocopy} */"),
                    match flag {
                        true => format!("{number} n{index} /* in:obj */"),
                        false => format!("{number} *n{index} /* inout:ptr */"),
                    },
                ],
                5 => vec![
                    format!("int n{index} /* in:obj */"),
                    format!("{element} *p{index} /* {direction}:arr:size=-1:max=9{zerocopy}{nullok} */"),
                ],
                _ => vec![
                    format!("{element} **p{index} /* {direction}:arr2d:size=+1{zerocopy} */"),
                    format!("{number} *l{index} /* {}:arr:size=+1 */", if flag { "in" } else { "inout" }),
                    format!("unsigned n{index} /* in:obj */"),
                ],
            }
        },
    )
}

fn function() -> impl Strategy<Value = (Vec<String>, &'static str, &'static str)> {
    let groups = (0usize..4).prop_flat_map(|count| (0..count).map(group).collect::<Vec<_>>());
    let result = prop::sample::select(&["void", "int", "double", "struct point", "uint64_t"][..]);
    let words = prop::sample::select(&["", "/* errno */", "/* blocking, idempotent */"][..]);
    (groups.prop_map(|groups| groups.concat()), result, words)
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn valid_headers_are_accepted_whole(functions in prop::collection::vec(function(), 1..6)) {
        let mut text = String::from("/* START-ZAZEN-SCANNER ID=9 INIT=NULL FINI=NULL */\n");
        for (index, (params, result, words)) in functions.iter().enumerate() {
            let params = if params.is_empty() { "void".to_owned() } else { params.join(",\n    ") };
            text.push_str(&format!("{words}\n{result} f{index}({params});\n"));
        }
        let output = match zazen_stubs::generate("valid.h", &text) {
            Ok(output) => output,
            Err(errors) => {
                let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
                return Err(TestCaseError::fail(format!("{text}\n{}", said.join("\n"))));
            }
        };
        prop_assert_eq!(output.functions, functions.len());
        let file = |name: &str|
            output.files.iter().find(|file| file.name == name).map(|file| file.text.as_str());
        let (client, dispatch) =
            (file("valid_client.c").unwrap_or(""), file("valid_dispatch.c").unwrap_or(""));
        for index in 0..functions.len() {
            let (stub, dispatcher) = (format!(" f{index}("), format!("dispatch_f{index}(struct zazen_call \
                                                                      *call)"));
            prop_assert!(client.contains(&stub) && dispatch.contains(&dispatcher));
        }
        for file in &output.files {
            let balance = |open: char, close: char|
                file.text.matches(open).count() == file.text.matches(close).count();
            prop_assert!(balance('{', '}') && balance('(', ')'), "{}", file.name);
        }
    }
}
