//! `NAME_roundtrip.c` sends random arguments through client stub, loopback, dispatcher and an echo,
//! and compares what comes back with what must come back.

use super::code::{Code, banner};
use super::echo::{elements, is_size, lines_of, number};
use crate::model::{Direction, Function, Interface, Param, Shape, Size};

pub(crate) fn text(interface: &Interface) -> String {
    let name = &interface.name;
    let file = format!("{name}_roundtrip.c");
    let what = "random calls from client stub to plug-in and back, compared";
    let mut code = Code::after(banner(interface, &file, what));
    code.lines(&format!(
        "/* cc -std=c11 -I SDK/include -I SDK/loopback {file} SDK/loopback/zazen_loopback.c -o {name}_roundtrip
        ./{name}_roundtrip [CALLS [SEED]] */
        #define _GNU_SOURCE
        #define ZAZEN_WITHOUT_HOOKS
        #include \"{name}_dispatch.c\"
        #include \"{name}_echo.h\"
        "
    ));
    code.line("/* Client and plug-in have functions of the same names: here the client's get others. */");
    for function in &interface.functions {
        code.line(format!("#define {0} client_{0}", function.name));
    }
    code.lines(&format!(
        "#include \"{name}_client.c\"

        #include \"zazen_loopback.h\"
        #include <unistd.h>

        static uint64_t zazen_seed;
        static struct zazen_stub_connection *connection;"
    ));
    for function in &interface.functions {
        round(&mut code, function);
    }
    main(&mut code, interface);
    code.finish()
}

fn round(code: &mut Code, function: &Function) {
    let f = &function.name;
    code.line("");
    code.line(format!("static void round_{f}(uint64_t *g)"));
    code.line("{");
    code.line("struct zazen_blocks blocks = {NULL, 0};");
    code.line("uint64_t digest, calls = echo_calls, completions = echo_completions;");
    for param in &function.params {
        declare(code, param);
    }
    // Arguments that hold sizes come first: objects, pointers, then arrays of lengths.
    for order in 0..4 {
        for param in function.params.iter().filter(|param| rank(function, param) == order) {
            fill(code, function, param);
        }
    }
    for param in &function.params {
        if !matches!(param.shape, Shape::Obj) {
            let name = &param.name;
            if param.shape == Shape::Arr2d {
                code.line(format!(
                    "e_{name} = zazen_duplicate(&blocks, a_{name}, n_{name} * sizeof *e_{name});"
                ));
                code.line(format!("for (uint64_t i = 0; i < n_{name}; i++)"));
                code.line(format!("    e_{name}[i] = zazen_duplicate(&blocks, a_{name}[i], l_{name}[i]);"));
            } else {
                code.line(format!("e_{name} = zazen_duplicate(&blocks, a_{name}, b_{name});"));
            }
        }
    }
    let list = |prefix: &str| -> String {
        let passed = function.params.iter().map(|param| match param.shape {
            Shape::Obj => format!("a_{}", param.name),
            // From `T **` to `const T *const *`, which C allows by cast only.
            Shape::Arr2d => format!("({})(void *){prefix}_{}", param.ty.c(), param.name),
            _ => format!("{prefix}_{}", param.name),
        });
        passed.collect::<Vec<_>>().join(", ")
    };
    let separator = if function.params.is_empty() { "" } else { ", " };
    code.line(format!("digest = digest_{f}({});", list("e")));
    let result =
        if function.returns() { format!("{} result = ", function.result.base.c()) } else { String::new() };
    code.line("{");
    if function.errno {
        code.line("errno = 0;");
    }
    code.line(format!("{result}{f}({});", list("a")));
    if function.errno {
        code.line("int error_number = errno;");
    }
    code.line("uint64_t p = digest;");
    code.line(format!("ZAZEN_SAME(zazen_stub_error() == ZAZEN_CALL_OK, \"{f}: transport status\");"));
    code.line(format!("ZAZEN_SAME(echo_calls == calls + 1, \"{f}: number of calls\");"));
    code.line(format!("ZAZEN_SAME(echo_seen == digest, \"{f}: what the plug-in saw\");"));
    if function.errno {
        code.line(format!("ZAZEN_SAME(error_number == (int)(digest % 100) + 1, \"{f}: errno\");"));
    }
    let must =
        if function.returns() { format!("{} must = ", function.result.base.c()) } else { String::new() };
    code.line(format!("{must}produce_{f}(&p{separator}{});", list("e")));
    compare_result(code, function);
    code.line("}");
    for param in &function.params {
        compare(code, function, param);
    }
    let userbufs =
        function.params.iter().filter(|param| param.userbuf && param.direction == Direction::Out).count();
    code.line(format!("ZAZEN_SAME(echo_completions == completions + {userbufs}, \"{f}: completions\");"));
    code.line("zazen_blocks_free(&blocks);");
    code.line("(void)g;");
    code.line("}");
}

fn rank(function: &Function, param: &Param) -> usize {
    match param.shape {
        Shape::Obj | Shape::Ptr => 0,
        Shape::Arr if lines_of(function, param) => 1,
        Shape::Str | Shape::Arr => 2,
        Shape::Arr2d => 3,
    }
}

fn declare(code: &mut Code, param: &Param) {
    let (name, c) = (&param.name, param.ty.base.c());
    match param.shape {
        Shape::Obj => code.line(format!("{c} a_{name};")),
        Shape::Arr2d => {
            code.line(format!("{c} **a_{name}, **e_{name};"));
            code.line(format!("uint64_t n_{name}, *l_{name}; /* lines, their bytes */"));
        }
        _ => {
            code.line(format!("{c} *a_{name} = NULL, *e_{name};"));
            code.line(format!("uint64_t b_{name} = 0;"));
        }
    }
    if param.shape == Shape::Obj && param.handle.is_some() {
        code.line(format!("int64_t h_{name} = 0;"));
    }
}

/// The largest value of a size, so that everything that it sizes stays within max=, and within its
/// own type.
fn limit(function: &Function, wanted: &Param) -> (u64, u64) {
    let (mut most, mut least) = (100_000, 0);
    for param in &function.params {
        let Size::Argument(target) = param.size else { continue };
        if function.params[target].name != wanted.name {
            continue;
        }
        most = most.min(param.max.unwrap_or(u64::MAX));
        if param.shape == Shape::Str {
            (most, least) = (most.min(64), 8);
        }
        if lines_of(function, param) {
            most = most.min(7);
        }
    }
    if wanted.ty.base.integer().is_some_and(|scalar| scalar.bytes == 1) {
        most = most.min(100);
    }
    (most, least)
}

fn fill(code: &mut Code, function: &Function, param: &Param) {
    let (name, c, element) = (&param.name, param.ty.base.c(), param.ty.base.element());
    if param.nullok {
        code.line("if (zazen_below(g, 4) != 0) {");
    }
    match param.shape {
        Shape::Obj => fill_object(code, function, param),
        Shape::Ptr => {
            code.line(format!("b_{name} = sizeof *a_{name};"));
            code.line(format!("a_{name} = zazen_block(&blocks, b_{name});"));
            if is_size(function, param) {
                let (most, least) = limit(function, param);
                code.line(format!(
                    "*a_{name} = ({c})({least} + zazen_some(g, {}));",
                    most.saturating_sub(least)
                ));
            } else if param.is_opaque() {
                code.line(format!("zazen_fill(g, a_{name}, b_{name});"));
            } else {
                code.line(format!("*a_{name} = {};", number(&param.ty.base, "g")));
            }
        }
        Shape::Str => {
            let capacity = match param.direction {
                Direction::In => param.max.unwrap_or(64).min(64).to_string(),
                _ => elements(function, param),
            };
            // An input string has no room behind its NUL.
            code.line(format!("b_{name} = {capacity};"));
            code.line(format!("a_{name} = zazen_block(&blocks, b_{name});"));
            code.line(format!("zazen_letters(g, a_{name}, b_{name});"));
            if param.direction == Direction::In {
                code.line(format!("b_{name} = strlen(a_{name}) + 1;"));
                code.line(format!("a_{name} = zazen_duplicate(&blocks, a_{name}, b_{name});"));
            }
        }
        Shape::Arr => {
            code.line(format!("b_{name} = {} * sizeof({element});", elements(function, param)));
            code.line(format!("a_{name} = zazen_block(&blocks, b_{name});"));
            if lines_of(function, param) {
                let (most, least) = limit(function, param);
                code.line(format!("for (uint64_t i = 0; i < b_{name} / sizeof *a_{name}; i++)"));
                code.line(format!("    a_{name}[i] = ({c})({least} + zazen_some(g, {}));", most.min(100)));
            } else {
                code.line(format!("zazen_fill(g, a_{name}, b_{name});"));
            }
        }
        Shape::Arr2d => {
            let l = &super::count::lengths(function, param).name;
            code.line(format!("n_{name} = {};", elements(function, param)));
            code.line(format!("a_{name} = zazen_block(&blocks, n_{name} * sizeof *a_{name});"));
            code.line(format!("l_{name} = zazen_block(&blocks, n_{name} * sizeof *l_{name});"));
            code.line(format!("for (uint64_t i = 0; i < n_{name}; i++) {{"));
            code.line(format!("l_{name}[i] = (uint64_t)a_{l}[i] * sizeof({element});"));
            code.line(format!("a_{name}[i] = zazen_block(&blocks, l_{name}[i]);"));
            code.line(format!("zazen_fill(g, a_{name}[i], l_{name}[i]);"));
            code.line("}");
        }
    }
    if param.nullok {
        code.line("}");
    }
}

fn fill_object(code: &mut Code, function: &Function, param: &Param) {
    let (name, c) = (&param.name, param.ty.base.c());
    if let Some(kind) = &param.handle {
        code.line(format!(
            "ZAZEN_SAME(zazen_loopback_handle_enter(connection, \"{kind}\", (int64_t)zazen_below(g, 1000), \
             &h_{name}) == 0, \"handle\");"
        ));
        code.line(format!("a_{name} = ({c})h_{name};"));
    } else if param.fd {
        code.line(format!("a_{name} = zazen_below(g, 4) == 0 ? -1 : 0;"));
    } else if param.is_opaque() {
        code.line(format!("zazen_fill(g, &a_{name}, sizeof a_{name});"));
        code.line(format!("ZAZEN_CLEAR_PADDING(&a_{name});"));
    } else if is_size(function, param) {
        let (most, least) = limit(function, param);
        code.line(format!("a_{name} = ({c})({least} + zazen_some(g, {}));", most.saturating_sub(least)));
    } else {
        code.line(format!("a_{name} = {};", number(&param.ty.base, "g")));
    }
}

fn compare_result(code: &mut Code, function: &Function) {
    let f = &function.name;
    if !function.returns() {
        return;
    }
    if let Some(kind) = &function.handle {
        code.line("int64_t value = -1;");
        code.line(format!(
            "ZAZEN_SAME(zazen_loopback_handle_value(connection, \"{kind}\", (int64_t)result, &value) == 0, \
             \"{f}: handle\");"
        ));
        code.line(format!("ZAZEN_SAME(value == (int64_t)must, \"{f}: what the handle stands for\");"));
    } else if function.fd {
        code.line("(void)must;");
        code.line(format!(
            "ZAZEN_SAME(zazen_stub_error() != 0 || (result >= 0 && close(result) == 0), \"{f}: descriptor\");"
        ));
    } else if matches!(function.result.base, crate::model::Base::Opaque(_)) {
        code.line("ZAZEN_CLEAR_PADDING(&result);");
        code.line(format!(
            "ZAZEN_SAME(!ZAZEN_BY_VALUE || zazen_equal(&result, &must, sizeof must), \"{f}: result\");"
        ));
    } else {
        code.line(format!("ZAZEN_SAME(zazen_equal(&result, &must, sizeof must), \"{f}: result\");"));
    }
}

fn compare(code: &mut Code, function: &Function, param: &Param) {
    let (f, name) = (&function.name, &param.name);
    match param.shape {
        Shape::Obj if param.handle.is_some() => {
            let kind = param.handle.as_deref().unwrap_or("handle");
            code.line("{");
            code.line("int64_t value;");
            let expected = if param.close { "ZAZEN_CALL_BAD_HANDLE" } else { "ZAZEN_CALL_OK" };
            code.line(format!(
                "ZAZEN_SAME(zazen_loopback_handle_value(connection, \"{kind}\", h_{name}, &value) == \
                 {expected}, \"{f}: handle {name}\");"
            ));
            code.line("}");
        }
        Shape::Obj => {}
        Shape::Ptr if param.fd => {
            code.line(format!(
                "ZAZEN_SAME(zazen_stub_error() != 0 || *a_{name} == -1 || close(*a_{name}) == 0, \"{f}: \
                 descriptor {name}\");"
            ));
        }
        Shape::Ptr if param.handle.is_some() => {
            let kind = param.handle.as_deref().unwrap_or("handle");
            code.line("{");
            code.line("int64_t value = -1;");
            code.line(format!(
                "int32_t found = zazen_loopback_handle_value(connection, \"{kind}\", \
                               (int64_t)*a_{name}, &value);"
            ));
            // A failed call gives no handle.
            let (c, f) = (param.ty.base.c(), &function.name);
            code.line(format!(
                "ZAZEN_SAME(found == 0 ? value == (int64_t)*e_{name} : *a_{name} == ({c})-1, \"{f}: handle \
                 {name}\");"
            ));
            code.line("}");
        }
        Shape::Arr2d => {
            code.line(format!("for (uint64_t i = 0; i < n_{name}; i++)"));
            code.line(format!(
                "    ZAZEN_SAME(zazen_equal(a_{name}[i], e_{name}[i], l_{name}[i]), \"{f}: {name}\");"
            ));
        }
        _ => code.line(format!("ZAZEN_SAME(zazen_equal(a_{name}, e_{name}, b_{name}), \"{f}: {name}\");")),
    }
}

fn main(code: &mut Code, interface: &Interface) {
    let name = &interface.name;
    code.lines(&format!(
        "
        /* Calls every function that often, over each way in which the loopback hands things over. */
        int main(int argc, char **argv)
        {{
        uint64_t calls = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000;
        uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
        for (uint32_t flags = 0; flags < 4; flags++) {{
        struct zazen_loopback_options options = {{.struct_size = sizeof options, .flags = flags}};
        const char *why = \"\";
        struct zazen_loopback *loopback = zazen_loopback_start(&zazen_plugin_v1, &options, &why);
        if (loopback == NULL) {{
        fprintf(stderr, \"%s\\n\", why);
        return 1;
        }}
        connection = zazen_loopback_connect(loopback);
        ZAZEN_SAME({name}_bind(connection) == ZAZEN_CALL_OK, \"bind\");
        for (uint64_t i = 0; i < (calls + 3) / 4; i++) {{
        uint64_t g;"
    ));
    for (index, function) in interface.functions.iter().enumerate() {
        let f = &function.name;
        code.line(format!("g = zazen_seed = seed * 1000003 + flags * 7919 + i * 31 + {index};"));
        code.line(format!("round_{f}(&g);"));
    }
    code.lines(&format!(
        "}}
        zazen_loopback_disconnect(connection, ZAZEN_DETACH_CLOSED);
        zazen_loopback_stop(loopback);
        }}
        printf(\"{name}: %llu calls of each of {} functions, all as expected\\n\", (unsigned long long)((calls + 3) / 4 * 4));
        return 0;
        }}",
        interface.functions.len()
    ));
}
