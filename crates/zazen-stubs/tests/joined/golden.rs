//! The generated files of one header, byte by byte, and what is said about each mistake: `golden/`.
//! A change of them is a change of what travels or of what users compile, so somebody has to look
//! at it. `ZAZEN_UPDATE_GOLDEN=1 cargo test -p zazen-stubs` writes them anew.
//!
//! The other headers have no golden files. `tests/plugin/test_plugin.py` compiles what is generated
//! from them, runs its round trips against a loopback, and fuzzes its dispatchers; a test below
//! shows that they have each kind of parameter that the generator accepts.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The headers that are compiled, run and fuzzed.
const HEADERS: [&str; 5] = ["files.h", "telescope.h", "events.h", "vectors.h", "extras.h"];

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Compares with a golden file, or writes it.
fn check_golden(name: &str, found: &str) {
    let path = here().join("golden").join(name);
    if std::env::var_os("ZAZEN_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).expect("the golden file can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).expect("the golden file is there");
    for (number, (left, right)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(left, right, "{}:{}", path.display(), number + 1);
    }
    assert_eq!(expected.len(), found.len(), "{}: one is the beginning of the other", path.display());
}

fn generated(header: &str) -> zazen_stubs::Output {
    let text = std::fs::read_to_string(here().join("headers").join(header)).expect("the header is there");
    zazen_stubs::generate(header, &text).unwrap_or_else(|errors| {
        panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })
}

#[test]
fn one_header_gives_these_files() {
    let output = generated("telescope.h");
    let bundle: String =
        output.files.iter().map(|file| format!("======== {}\n{}", file.name, file.text)).collect();
    check_golden("telescope.txt", &bundle);
}

#[test]
fn the_same_header_gives_the_same_bytes() {
    for header in HEADERS {
        assert_eq!(generated(header).files, generated(header).files, "{header}");
    }
}

/// What annotations can say besides direction, kind and size.
const OPTIONS: [&str; 8] = ["", "max", "nullok", "zerocopy", "userbuf", "fd", "handle", "close"];

/// Each kind of parameter that the generator accepts: direction, kind, and one option.
fn accepted() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for direction in ["in", "out", "inout"] {
        for shape in ["obj", "ptr", "str", "arr", "arr2d"] {
            for option in OPTIONS {
                let (ty, size, rest) = match shape {
                    "obj" => ("int ", "", ""),
                    "ptr" => ("int *", "", ""),
                    "str" if direction == "in" => ("char *", "", ""),
                    "str" => ("char *", ":size=+1", ", int n /* in:obj */"),
                    "arr" => ("int *", ":size=+1", ", int n /* in:obj */"),
                    _ => ("int **", ":size=+1", ", int *l /* in:arr:size=+1 */, int n /* in:obj */"),
                };
                let said = match option {
                    "" => String::new(),
                    "max" => ":max=9".to_owned(),
                    "userbuf" => ":zerocopy:userbuf".to_owned(),
                    "handle" => ":handle=thing".to_owned(),
                    "close" => ":handle=thing:close".to_owned(),
                    option => format!(":{option}"),
                };
                let function = format!("void f({ty}p /* {direction}:{shape}{size}{said} */{rest});");
                let header = format!("/* START-ZAZEN-SCANNER ID=3 INIT=NULL FINI=NULL */\n{function}\n");
                if zazen_stubs::generate("a.h", &header).is_ok() {
                    all.insert(format!("{direction}:{shape}:{option}"));
                }
            }
        }
    }
    all
}

/// The kinds of parameters of the headers: their annotations, as the schemas have them.
fn tried() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for header in HEADERS {
        let output = generated(header);
        let schema = output.files.iter().find(|file| file.name.ends_with("_schema.json")).expect("a schema");
        for annotation in
            schema.text.split("\"annotation\": \"").skip(1).filter_map(|rest| rest.split('"').next())
        {
            let mut words = annotation.split(':');
            let (direction, shape) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            all.insert(format!("{direction}:{shape}:"));
            for option in
                words.filter_map(|word| word.split('=').next()).filter(|word| OPTIONS.contains(word))
            {
                all.insert(format!("{direction}:{shape}:{option}"));
            }
        }
    }
    all
}

#[test]
fn the_headers_that_are_run_have_each_kind_of_parameter() {
    let missing: Vec<String> = accepted().difference(&tried()).cloned().collect();
    assert!(missing.is_empty(), "add parameters of these kinds to tests/headers: {missing:?}");
    assert!(accepted().len() > 40, "{:?}", accepted());
}

/// What a header's wording changes, and what it must not.
#[test]
fn the_hash_is_of_the_interface_not_of_its_wording() {
    let header = |function: &str| format!("/* START-ZAZEN-SCANNER ID=3 INIT=NULL FINI=NULL */\n{function}\n");
    let hash = |function: &str| zazen_stubs::generate("a.h", &header(function)).unwrap().schema_hash;
    let base = hash("int f(int a /* in:obj */, void *b /* in:arr:size=-1 */);");
    let same = [
        "extern int f(int a /*in:obj*/, void*b /* in : arr : size=-1 */ ) ;",
        "/* What f does. */\nint\nf(signed a /* in:obj */ // the first\n, void *b /* in:arr:size=-1 */);",
    ];
    for function in same {
        assert_eq!(hash(function), base, "{function}");
    }
    let different = [
        "int g(int a /* in:obj */, void *b /* in:arr:size=-1 */);",
        "int f(unsigned a /* in:obj */, void *b /* in:arr:size=-1 */);",
        "int f(int a /* in:obj */, void *b /* in:arr:size=-1:max=5 */);",
        "int f(int a /* in:obj */, void *b /* inout:arr:size=-1 */);",
        "/* errno */ int f(int a /* in:obj */, void *b /* in:arr:size=-1 */);",
        "int f(int a /* in:obj */, void *b /* in:arr:size=-1 */); void g(void);",
    ];
    for function in different {
        assert_ne!(hash(function), base, "{function}");
    }
}

/// Each mistake with what is said about it.
#[test]
fn diagnostics() {
    let mut said = String::new();
    for (title, header) in mistakes() {
        let header = match header.contains("SCANNER") || title.contains("marker") {
            true => header.to_owned(),
            false => format!("/* START-ZAZEN-SCANNER ID=3 INIT=NULL FINI=NULL */\n{header}\n"),
        };
        let errors = zazen_stubs::generate("mistake.h", &header).expect_err(title);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        said.push_str(&format!("# {title}\n{}\n\n", errors.join("\n")));
    }
    check_golden("diagnostics.txt", &said);
}

fn mistakes() -> Vec<(&'static str, &'static str)> {
    vec![
        ("no marker", "int f(int a /* in:obj */);"),
        ("marker outside a comment", "START-ZAZEN-SCANNER ID=1\nint f(int a /* in:obj */);"),
        ("marker without ID", "/* START-ZAZEN-SCANNER INIT=NULL FINI=NULL */\nvoid f(void);"),
        ("ID out of range", "/* START-ZAZEN-SCANNER ID=70000 INIT=NULL FINI=NULL */\nvoid f(void);"),
        ("no INIT and FINI", "/* START-ZAZEN-SCANNER ID=7 */\nvoid f(void);"),
        ("unknown key", "/* START-ZAZEN-SCANNER ID=7 INIT=NULL FINI=NULL ATACH=f */\nvoid f(void);"),
        ("nothing to forward", "/* nothing here */"),
        (
            "a second START",
            "/* START-ZAZEN-SCANNER ID=7 INIT=NULL FINI=NULL */\nvoid f(void);\n/* START-ZAZEN-SCANNER ID=8 \
             INIT=NULL FINI=NULL */",
        ),
        ("comment without an end", "int f(int a /* in:obj */);\n/* and so on"),
        ("missing annotation", "int f(int fd /* in:obj */, void *buf, const char *name);"),
        ("unknown direction", "int f(int a /* inn:obj */);"),
        ("unknown direction, not a typo", "int f(int a /* both:obj */);"),
        ("no kind", "int f(int a /* in */);"),
        ("unknown kind", "int f(int a /* in:object */);"),
        ("unknown option", "int f(void *a /* out:arr:size=+1:zercopy */, int n /* in:obj */);"),
        ("option twice", "int f(int *a /* out:ptr:nullok:nullok */);"),
        ("missing comma", "int f(int a /* in:obj */ int b /* in:obj */, int c /* in:obj */);"),
        ("annotation after the comma", "int f(int a, /* in:obj */ int b /* in:obj */);"),
        ("annotation in a line comment", "int f(int a // in:obj\n);"),
        ("two annotations", "int f(int a /* in:obj */ /* in:obj */);"),
        ("size index out of range", "int f(void *a /* in:arr:size=+2 */, int n /* in:obj */);"),
        ("size of itself", "int f(void *a /* in:arr:size=+0 */);"),
        ("size is no index", "int f(void *a /* in:arr:size=n */, int n /* in:obj */);"),
        ("size target of a wrong type", "int f(void *a /* in:arr:size=+1 */, double n /* in:obj */);"),
        (
            "size target of a wrong kind",
            "int f(void *a /* in:arr:size=+1 */, int *n /* in:arr:size=+1 */, int m /* in:obj */);",
        ),
        ("size target of a wrong direction", "int f(void *a /* out:arr:size=+1 */, int *n /* out:ptr */);"),
        ("size through a pointer that is none", "int f(void *a /* in:arr:size=*+1 */, int n /* in:obj */);"),
        ("array without size", "int f(void *a /* in:arr */, char *s /* out:str */);"),
        ("size on ptr", "int f(int *a /* in:ptr:size=+1 */, int n /* in:obj */);"),
        ("max that is none", "int f(char *a /* out:str:max=0 */);"),
        ("lines without lengths", "int f(void **a /* in:arr2d:size=+1 */, int n /* in:obj */);"),
        (
            "line lengths that are out",
            "int f(void **a /* out:arr2d:size=+1 */, int *l /* out:arr:size=+1 */, int n /* in:obj */);",
        ),
        ("long", "unsigned long f(long a /* in:obj */);"),
        ("pointer to pointer", "int f(char **a /* out:ptr */);"),
        ("three levels", "int f(char ***a /* in:arr2d:size=+1 */, int n /* in:obj */);"),
        ("pointer result", "char *f(int a /* in:obj */);"),
        ("variadic", "int f(const char *format /* in:str */, ...);"),
        ("function pointer", "int f(void (*done)(int) /* in:obj */, int a /* in:obj */);"),
        ("array of arrays", "int f(int a[2][3] /* in:arr */);"),
        ("array of unknown length", "#define N 3\nint f(int a[N] /* in:arr */);"),
        ("obj that is a pointer", "int f(int *a /* in:obj */);"),
        ("ptr that is none", "int f(int a /* in:ptr */);"),
        ("out by value", "int f(int a /* out:obj */);"),
        ("out through const", "int f(const int *a /* out:ptr */);"),
        ("pointer to void", "int f(void *a /* in:ptr */);"),
        ("str that is no char", "int f(unsigned char *a /* in:str */);"),
        ("array of bool", "int f(_Bool *a /* in:arr:size=+1 */, int n /* in:obj */);"),
        ("zerocopy on obj", "int f(int a /* in:obj:zerocopy */);"),
        ("userbuf without zerocopy", "int f(void *a /* in:arr:size=+1:userbuf */, int n /* in:obj */);"),
        (
            "two userbufs one way",
            "int f(void *a /* in:arr:size=+1:zerocopy:userbuf */, int n /* in:obj */,\n      \
             void *b /* in:arr:size=-1:zerocopy:userbuf */);",
        ),
        (
            "nullok on userbuf",
            "int f(void *a /* in:arr:size=+1:zerocopy:userbuf:nullok */, int n /* in:obj */);",
        ),
        ("nullok on obj", "int f(int a /* in:obj:nullok */);"),
        ("handle on a string", "int f(const char *a /* in:str:handle */);"),
        ("close without handle", "int f(int a /* in:obj:close */);"),
        ("descriptor that is no int", "int f(int64_t a /* in:obj:fd */);"),
        ("duplicate function", "int f(int a /* in:obj */);\nvoid f(void);"),
        ("two parameters of one name", "int f(int a /* in:obj */, int a /* in:obj */);"),
        ("unknown word about the function", "/* errno blokcing */\nint f(int a /* in:obj */);"),
        ("oneway with a result", "/* oneway */\nint f(int *a /* out:ptr */);"),
        ("handle of a result that is no number", "/* handle=file */\nvoid f(void);"),
        ("condition inside", "#ifdef WITH_F\nint f(int a /* in:obj */);\n#endif"),
        ("a body", "int f(int a /* in:obj */) { return a; }\nvoid g(void);"),
        ("static function", "static inline int f(int a) { return a; }\nvoid g(void);"),
        ("a variable", "extern int f;\nvoid g(void);"),
        ("volatile", "int f(volatile int *a /* in:ptr */);"),
        ("what lives in one process", "int f(FILE *a /* in:ptr */);"),
        ("unfinished", "int f(int a /* in:obj */"),
        (
            "many at once",
            "int f(int a, long b /* in:obj */);\nint g(char **c /* in:str */);\nvoid h(void);\n\
             int i(int n /* in:obj */, void *d /* in:arr:size=-2 */);",
        ),
    ]
}
