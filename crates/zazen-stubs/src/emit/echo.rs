//! `NAME_echo.h`: the plug-in's functions for the tests. Each function digests its inputs and
//! derives its outputs from the digest. So a client can compute what must come back.

use super::code::{Code, banner};
use crate::model::{Base, Direction, Function, Interface, Param, Shape, Size};
use crate::types::Class;

pub(crate) fn text(interface: &Interface) -> String {
    let name = &interface.name;
    let upper = name.to_uppercase();
    let what = "stand-ins for the plug-in's functions, for the generated tests";
    let mut code = Code::after(banner(interface, &format!("{name}_echo.h"), what));
    code.lines(&format!(
        "#ifndef {upper}_ECHO_H
        #define {upper}_ECHO_H

        #include \"{name}_wire.h\"
        #include \"zazen_plugin.h\"
        #include \"zazen_selftest.h\"

        #include <fcntl.h>
        #include <sys/stat.h>

        static uint64_t echo_seen; /* digest of the inputs of the last call */
        static uint64_t echo_calls;
        static uint64_t echo_completions;"
    ));
    let sends_userbuf = |param: &Param| param.userbuf && param.direction == Direction::Out;
    if interface.functions.iter().any(|function| function.params.iter().any(sends_userbuf)) {
        code.lines(
            "
        static void echo_completed(int32_t status, void *buffer)
        {
        (void)status;
        echo_completions++;
        free(buffer);
        }",
        );
    }
    for function in &interface.functions {
        digest(&mut code, function);
        produce(&mut code, function);
        implementation(&mut code, function);
    }
    code.lines("\n#endif");
    code.finish()
}

/// The test compares the values that it can know. It does not know descriptors and handles, because
/// the host chooses them.
fn compared(param: &Param) -> bool {
    param.handle.is_none() && !param.fd
}

pub(crate) fn parameters(function: &Function) -> String {
    let params: Vec<String> =
        function.params.iter().map(|param| param.ty.declare(&format!("a_{}", param.name))).collect();
    params.join(", ")
}

/// The number of elements of an array argument, by the present value of its size argument.
pub(crate) fn elements(function: &Function, param: &Param) -> String {
    match param.size {
        Size::None => format!("{}", param.max.unwrap_or(1)),
        Size::Fixed(count) => format!("UINT64_C({count})"),
        Size::Argument(target) => {
            let target = &function.params[target];
            match target.shape {
                Shape::Ptr if target.nullok => format!("(a_{0} == NULL ? 0 : (uint64_t)*a_{0})", target.name),
                Shape::Ptr => format!("(uint64_t)*a_{}", target.name),
                Shape::Arr => elements(function, target),
                _ => format!("(uint64_t)a_{}", target.name),
            }
        }
    }
}

fn unused(code: &mut Code, function: &Function) {
    for param in &function.params {
        code.line(format!("(void)a_{};", param.name));
    }
}

fn digest(code: &mut Code, function: &Function) {
    let f = &function.name;
    code.line("");
    let params = parameters(function);
    code.line(format!("static uint64_t digest_{f}({})", if params.is_empty() { "void" } else { &params }));
    code.line("{");
    code.line(format!("uint64_t d = zazen_digest(UINT64_C(0xcbf29ce484222325), \"{f}\", sizeof \"{f}\");"));
    unused(code, function);
    for param in function.params.iter().filter(|param| param.direction.is_in() && compared(param)) {
        let (name, element) = (&param.name, param.ty.base.element());
        match param.shape {
            Shape::Obj if param.is_opaque() => {
                code.line("if (ZAZEN_BY_VALUE) {");
                code.line(format!("ZAZEN_CLEAR_PADDING(&a_{name});"));
                code.line(format!("d = zazen_digest(d, &a_{name}, sizeof a_{name});"));
                code.line("}");
            }
            Shape::Obj => code.line(format!("d = zazen_digest(d, &a_{name}, sizeof a_{name});")),
            Shape::Ptr => {
                code.line(format!("d = zazen_digest(d, a_{name}, a_{name} == NULL ? 0 : sizeof *a_{name});"));
            }
            Shape::Str => {
                code.line(format!(
                    "d = zazen_digest(d, a_{name}, a_{name} == NULL ? 0 : strlen(a_{name}) + 1);"
                ));
            }
            Shape::Arr => {
                let count = elements(function, param);
                code.line(format!(
                    "d = zazen_digest(d, a_{name}, a_{name} == NULL ? 0 : {count} * sizeof({element}));"
                ));
            }
            Shape::Arr2d => {
                let (count, l) = (elements(function, param), &super::count::lengths(function, param).name);
                code.line(format!("for (uint64_t i = 0; i < {count}; i++)"));
                code.line(format!(
                    "    d = zazen_digest(d, a_{name}[i], (uint64_t)a_{l}[i] * sizeof({element}));"
                ));
            }
        }
    }
    code.line("return d;");
    code.line("}");
}

/// A random number of a scalar's type. Floats are whole numbers, so that they equal themselves.
pub(crate) fn number(base: &Base, state: &str) -> String {
    match base {
        Base::Scalar(scalar) if scalar.class == Class::Bool => format!("(zazen_random({state}) & 1) != 0"),
        Base::Scalar(scalar) if scalar.class == Class::Float => {
            format!("({})zazen_below({state}, 1000000)", scalar.c)
        }
        base => format!("({})zazen_random({state})", base.c()),
    }
}

/// Writes all outputs and returns the result, both as functions of the digest.
fn produce(code: &mut Code, function: &Function) {
    let f = &function.name;
    let result = if function.returns() { function.result.base.c() } else { "void" };
    let params = parameters(function);
    let separator = if params.is_empty() { "" } else { ", " };
    code.line("");
    code.line(format!("static {result} produce_{f}(uint64_t *g{separator}{params})"));
    code.line("{");
    if function.returns() {
        match &function.result.base {
            Base::Opaque(c) => {
                code.line(format!("{c} result;"));
                code.line("zazen_fill(g, &result, sizeof result);");
                code.line("ZAZEN_CLEAR_PADDING(&result);");
            }
            _ if function.handle.is_some() || function.fd => {
                code.line(format!("{result} result = ({result})zazen_below(g, 1000);"));
            }
            base => code.line(format!("{result} result = {};", number(base, "g"))),
        }
    }
    code.line("(void)g;");
    unused(code, function);
    let outs = |shape: Shape| {
        function.params.iter().filter(move |param| param.shape == shape && param.direction.is_out())
    };
    // Strings while their capacities are still there; sizes; arrays of lengths; what they are the
    // lengths of.
    for param in outs(Shape::Str) {
        let name = &param.name;
        code.line(format!("if (a_{name} != NULL)"));
        code.line(format!("    zazen_letters(g, a_{name}, {});", elements(function, param)));
    }
    for param in outs(Shape::Ptr) {
        pointee(code, function, param);
    }
    for param in outs(Shape::Arr) {
        let (name, element, count) = (&param.name, param.ty.base.c(), elements(function, param));
        if lines_of(function, param) {
            code.line(format!("for (uint64_t i = 0; i < {count}; i++)"));
            code.line(format!("    a_{name}[i] = ({element})zazen_below(g, (uint64_t)a_{name}[i] + 1);"));
        } else {
            let element = param.ty.base.element();
            code.line(format!("if (a_{name} != NULL)"));
            code.line(format!("    zazen_fill(g, a_{name}, {count} * sizeof({element}));"));
        }
    }
    for param in outs(Shape::Arr2d) {
        let (name, element) = (&param.name, param.ty.base.element());
        let (count, l) = (elements(function, param), &super::count::lengths(function, param).name);
        code.line(format!("for (uint64_t i = 0; i < {count}; i++)"));
        code.line(format!("    zazen_fill(g, a_{name}[i], (uint64_t)a_{l}[i] * sizeof({element}));"));
    }
    if function.returns() {
        code.line("return result;");
    }
    code.line("}");
}

/// Whether an array holds the lengths of an arr2d's lines.
pub(crate) fn lines_of(function: &Function, lengths: &Param) -> bool {
    function.params.iter().any(|param| {
        param.shape == Shape::Arr2d && super::count::lengths(function, param).name == lengths.name
    })
}

/// Whether an argument holds a size.
pub(crate) fn is_size(function: &Function, wanted: &Param) -> bool {
    function.params.iter().any(|param| match param.size {
        Size::Argument(target) => function.params[target].name == wanted.name,
        _ => false,
    })
}

fn pointee(code: &mut Code, function: &Function, param: &Param) {
    let (name, c) = (&param.name, param.ty.base.c());
    code.line(format!("if (a_{name} != NULL)"));
    code.line(if param.is_opaque() {
        format!("    zazen_fill(g, a_{name}, sizeof *a_{name});")
    } else if is_size(function, param) {
        format!("    *a_{name} = ({c})zazen_below(g, (uint64_t)*a_{name} + 1);")
    } else if !compared(param) {
        format!("    *a_{name} = ({c})zazen_below(g, 1000);")
    } else {
        format!("    *a_{name} = {};", number(&param.ty.base, "g"))
    });
}

fn implementation(code: &mut Code, function: &Function) {
    let f = &function.name;
    let arguments: Vec<String> = function.params.iter().map(|param| format!("a_{}", param.name)).collect();
    let arguments = arguments.join(", ");
    code.line("");
    code.line(function.prototype(f, "a_"));
    code.line("{");
    code.line(format!("uint64_t g = digest_{f}({arguments});"));
    let userbuf = function.params.iter().find(|param| param.userbuf && param.direction == Direction::Out);
    let element = userbuf.map_or("", |param| param.ty.base.element());
    if function.returns() {
        code.line(format!("{} result;", function.result.base.c()));
    }
    code.line("echo_seen = g;");
    code.line("echo_calls++;");
    for param in function.params.iter().filter(|param| param.fd && param.direction.is_in()) {
        code.line("{");
        code.line("struct stat about;");
        code.line(format!("if (fstat(a_{0}, &about) != 0 && a_{0} >= 0)", param.name));
        code.line("    echo_seen = 0;");
        code.line("}");
    }
    if let Some(param) = userbuf {
        code.line(format!(
            "a_{} = calloc(1, {} * sizeof({element}) + 1);",
            param.name,
            elements(function, param)
        ));
    }
    let separator = if arguments.is_empty() { "" } else { ", " };
    let call = format!("produce_{f}(&g{separator}{arguments});");
    code.line(if function.returns() { format!("result = {call}") } else { call });
    if let Some(param) = userbuf {
        code.line(format!(
            "zazen_plugin_host()->register_userbuf(a_{0}, echo_completed, a_{0});",
            param.name
        ));
    }
    for param in function.params.iter().filter(|param| param.userbuf && param.direction == Direction::In) {
        code.line(format!("free((void *)(uintptr_t)a_{});", param.name));
    }
    for param in function.params.iter().filter(|param| param.fd && param.direction.is_out()) {
        code.line(format!("if ({})", super::dispatch::worked(function)));
        code.line(format!("    *a_{} = open(\"/dev/null\", O_RDONLY);", param.name));
    }
    if function.fd {
        code.line("result = open(\"/dev/null\", O_RDONLY);");
    }
    if function.errno {
        code.line("errno = (int)(echo_seen % 100) + 1;");
    }
    if function.returns() {
        code.line("return result;");
    }
    code.line("}");
    if function.params.iter().any(|param| param.userbuf && param.direction == Direction::In) {
        code.lines(&format!(
            "
            void *{f}_allocate_cb(uint64_t bytes)
            {{
            return malloc(bytes == 0 ? 1 : (size_t)bytes);
            }}

            void {f}_release_cb(void *buffer, int32_t status)
            {{
            (void)status;
            free(buffer);
            }}"
        ));
    }
}
