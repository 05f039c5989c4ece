//! `NAME_client.c`: the functions of the header, forwarded.
//!
//! Each stub takes the same steps: it counts, lays out, calls, checks the whole reply, and only
//! then stores.

use super::code::{Code, banner};
use super::count::{self, Side};
use crate::model::{Base, Direction, Function, Interface, Param, Shape};
use crate::types::Class;

pub(crate) fn text(interface: &Interface) -> String {
    let name = &interface.name;
    let upper = name.to_uppercase();
    let what = "the functions of the header, forwarded to the plug-in";
    let mut code = Code::after(banner(interface, &format!("{name}_client.c"), what));
    code.lines(&format!(
        "
        #include \"{name}_wire.h\"
        #include \"zazen_stub.h\"

        #include <stdlib.h>

        static const struct zazen_stub_service {name}_service = {{
        .struct_size = sizeof(struct zazen_stub_service),
        .id = {upper}_ID,
        .name = \"{name}\",
        .schema_hash = {upper}_SCHEMA_HASH,
        .layout_hash = {upper}_LAYOUT_HASH,
        .function_count = {upper}_FUNCTIONS,
        }};

        static struct zazen_stub_connection *{name}_connection;

        int32_t {name}_bind(struct zazen_stub_connection *connection);

        /* Sends this plug-in's calls over `connection` from now on (NULL: the default one); a transport status. */
        int32_t {name}_bind(struct zazen_stub_connection *connection)
        {{
        __atomic_store_n(&{name}_connection, connection, __ATOMIC_RELEASE);
        return zazen_stub_bind(connection, &{name}_service);
        }}"
    ));
    for (index, function) in interface.functions.iter().enumerate() {
        stub(&mut code, interface, index, function);
    }
    code.finish()
}

/// What a stub returns when the call did not take place.
fn failure(function: &Function) -> &'static str {
    match &function.result.base {
        Base::Scalar(scalar) if scalar.class == Class::Signed => "-1",
        _ => "0",
    }
}

fn stub(code: &mut Code, interface: &Interface, index: usize, function: &Function) {
    let (name, f) = (&interface.name, &function.name);
    code.line("");
    code.line(function.prototype(f, "a_"));
    code.line("{");
    declarations(code, name, index, function);
    code.line("");
    code.line("memset(&q, 0, sizeof q);");
    for param in &function.params {
        argument(code, param);
    }
    for param in &function.params {
        measure(code, function, param);
    }
    segments(code, function);
    send(code, interface, function);
    if !function.oneway {
        check_reply(code, function);
        store(code, function);
    }
    code.line("done:");
    if function.has_lines() {
        code.line("free(segments);");
    }
    code.line("zazen_stub_end(&c, status);");
    if function.errno {
        code.line("if (status != ZAZEN_CALL_OK)");
        code.line("    errno = zazen_call_errno(status);");
        code.line("else if (r.error_number != 0)");
        code.line("    errno = r.error_number;");
    }
    if function.returns() {
        code.line("return result;");
    }
    code.line("}");
}

fn declarations(code: &mut Code, name: &str, index: usize, function: &Function) {
    let f = &function.name;
    code.line(format!("struct {name}_{f}_request q;"));
    if !function.oneway {
        code.line(format!("struct {name}_{f}_reply r;"));
    }
    let flags = flags(function);
    code.line(format!(
        "struct zazen_stub_call c = {{.struct_size = sizeof c, .function = {index}, .flags = {flags}}};"
    ));
    for param in &function.params {
        if matches!(param.shape, Shape::Str | Shape::Arr | Shape::Arr2d) {
            variables(code, param);
        }
    }
    let single = |kept: &mut dyn Iterator<Item = (usize, &Param)>| {
        kept.filter(|(_, param)| param.shape != Shape::Arr2d).count()
    };
    let tail = single(&mut function.tail(Direction::is_in));
    let (ins, outs) =
        (single(&mut function.segments(Direction::is_in)), single(&mut function.segments(Direction::is_out)));
    if function.has_lines() {
        code.line(format!("uint64_t tail_max = {tail}, in_max = {ins}, out_max = {outs};"));
        code.line("struct zazen_segment *segments = NULL, *tail = NULL, *in = NULL, *out = NULL;");
    } else {
        for (word, count) in [("tail", tail), ("in", ins), ("out", outs)] {
            if count > 0 {
                code.line(format!("struct zazen_segment {word}[{count}];"));
            }
        }
    }
    let fds = function.params.iter().filter(|param| param.fd && param.direction.is_in()).count();
    if fds > 0 {
        code.line(format!("int fds[{fds}];"));
    }
    code.line("uint64_t at = sizeof q;");
    code.line("int32_t status = ZAZEN_CALL_OK;");
    if function.returns() {
        match &function.result.base {
            Base::Opaque(c) => {
                code.line(format!("{c} result;"));
                code.line("memset(&result, 0, sizeof result);");
            }
            Base::Enum(c) => code.line(format!("{c} result = ({c})0;")),
            base => code.line(format!("{} result = {};", base.c(), failure(function))),
        }
    }
}

/// The numbers kept about a string or array.
fn variables(code: &mut Code, param: &Param) {
    let name = &param.name;
    let plain_text = param.shape == Shape::Str && !param.direction.is_out();
    code.line(match (plain_text, param.direction.is_out()) {
        (true, _) => format!("uint64_t b_{name} = 0; /* bytes */"),
        (_, false) => format!("uint64_t n_{name} = 0, b_{name} = 0; /* elements, bytes */"),
        (_, true) if param.shape == Shape::Arr => {
            format!(
                "uint64_t n_{name} = 0, b_{name} = 0, m_{name} = 0; /* elements, bytes, bytes that come \
                     back */"
            )
        }
        (_, true) if param.shape == Shape::Arr2d => {
            format!(
                "uint64_t n_{name} = 0, b_{name} = 0, k_{name} = 0; /* lines, bytes, lines that come back \
                     */"
            )
        }
        (_, true) => format!("uint64_t n_{name} = 0, b_{name} = 0; /* elements, bytes */"),
    });
}

pub(crate) fn flags(function: &Function) -> String {
    let flags: Vec<&str> = [
        (function.blocking, "ZAZEN_FUNCTION_BLOCKING"),
        (function.oneway, "ZAZEN_FUNCTION_ONEWAY"),
        (function.idempotent, "ZAZEN_FUNCTION_IDEMPOTENT"),
        (function.errno, "ZAZEN_FUNCTION_ERRNO"),
    ]
    .into_iter()
    .filter_map(|(set, flag)| set.then_some(flag))
    .collect();
    if flags.is_empty() { "0".into() } else { flags.join(" | ") }
}

/// Objects and pointers into the fixed part.
fn argument(code: &mut Code, param: &Param) {
    let name = &param.name;
    match param.shape {
        Shape::Obj if param.fd => {
            code.line(format!("q.v_{name} = a_{name};"));
            code.line(format!("if (a_{name} >= 0) {{"));
            code.line(format!("q.v_{name} = (int32_t)c.fd_count;"));
            code.line(format!("fds[c.fd_count++] = a_{name};"));
            code.line("}");
        }
        Shape::Obj if param.is_opaque() => {
            code.line(format!("memcpy(q.o_{name}, &a_{name}, sizeof a_{name});"));
        }
        Shape::Obj => code.line(format!("q.v_{name} = ({})a_{name};", wire_type(param))),
        Shape::Ptr => {
            if !param.nullok {
                code.line(format!("ZAZEN_NEED(a_{name} != NULL, ZAZEN_CALL_NULL_POINTER);"));
            } else {
                code.line(format!("q.has_{name} = a_{name} != NULL;"));
            }
            if param.direction.is_in() {
                let guard = if param.nullok { format!("if (a_{name} != NULL) ") } else { String::new() };
                code.line(if param.is_opaque() {
                    format!("{guard}memcpy(q.o_{name}, a_{name}, sizeof *a_{name});")
                } else {
                    format!("{guard}q.v_{name} = ({})*a_{name};", wire_type(param))
                });
            }
        }
        _ if param.nullok => code.line(format!("q.has_{name} = a_{name} != NULL;")),
        Shape::Str => code.line(format!("ZAZEN_NEED(a_{name} != NULL, ZAZEN_CALL_NULL_POINTER);")),
        Shape::Arr | Shape::Arr2d => {}
    }
}

/// The fixed-width type of a number in a message.
pub(crate) fn wire_type(param: &Param) -> &'static str {
    match &param.ty.base {
        _ if param.handle.is_some() => "int64_t",
        Base::Scalar(scalar) => scalar.wire,
        _ => "uint32_t",
    }
}

/// How large a string or array is on entry.
fn measure(code: &mut Code, function: &Function, param: &Param) {
    let name = &param.name;
    let guarded = param.nullok && matches!(param.shape, Shape::Str | Shape::Arr);
    if guarded {
        code.line(format!("if (a_{name} != NULL) {{"));
    }
    match param.shape {
        Shape::Obj | Shape::Ptr => {}
        Shape::Str => {
            if param.direction.is_out() {
                count::capacity(code, Side::Client, function, param);
                code.line(format!("ZAZEN_NEED(n_{name} > 0, ZAZEN_CALL_TOO_LARGE);"));
            }
            match param.direction {
                Direction::In => {
                    code.line(format!("b_{name} = strlen(a_{name}) + 1;"));
                    code.line(format!(
                        "ZAZEN_NEED(b_{name} <= {}, ZAZEN_CALL_TOO_LARGE);",
                        count::max_of(param)
                    ));
                }
                Direction::InOut => code.line(format!(
                    "ZAZEN_NEED(memchr(a_{name}, 0, (size_t)b_{name}) != NULL, ZAZEN_CALL_TOO_LARGE);"
                )),
                Direction::Out => {}
            }
        }
        Shape::Arr => {
            count::capacity(code, Side::Client, function, param);
            if !param.nullok {
                code.line(format!("ZAZEN_NEED(a_{name} != NULL || b_{name} == 0, ZAZEN_CALL_NULL_POINTER);"));
            }
        }
        Shape::Arr2d => measure_lines(code, function, param),
    }
    if guarded {
        code.line("}");
    }
}

fn measure_lines(code: &mut Code, function: &Function, param: &Param) {
    let name = &param.name;
    let lengths = count::lengths(function, param);
    // The lengths may come after the lines, because their own size argument gives their number.
    count::capacity(
        code,
        Side::Client,
        function,
        &Param { size: lengths.size, max: None, name: name.clone(), ..param.clone() },
    );
    let limit = if param.zerocopy { "ZAZEN_SEGMENTS_MAX" } else { "ZAZEN_LINES_MAX" };
    code.line(format!("ZAZEN_NEED(n_{name} <= {limit}, ZAZEN_CALL_TOO_LARGE);"));
    code.line(format!(
        "ZAZEN_NEED((a_{name} != NULL && a_{} != NULL) || n_{name} == 0, ZAZEN_CALL_NULL_POINTER);",
        lengths.name
    ));
    code.line(format!("b_{name} = 0;"));
    code.line(format!("for (uint64_t i = 0; i < n_{name}; i++) {{"));
    line_bytes(code, param, lengths, &format!("a_{}[i]", lengths.name));
    code.line(format!("ZAZEN_NEED(a_{name}[i] != NULL || bytes == 0, ZAZEN_CALL_NULL_POINTER);"));
    code.line(format!("ZAZEN_TRY(zazen_advance(&b_{name}, bytes));"));
    code.line("}");
    let mut add = |what: &str| {
        code.line(format!("{what}_max += n_{name};"));
    };
    match (param.zerocopy, param.direction.is_in(), param.direction.is_out()) {
        (false, true, _) => add("tail"),
        (true, is_in, is_out) => {
            if is_in {
                add("in");
            }
            if is_out {
                add("out");
            }
        }
        _ => {}
    }
}

/// Sets `bytes`, those of a line of `value` elements.
pub(crate) fn line_bytes(code: &mut Code, param: &Param, lengths: &Param, value: &str) {
    code.line("uint64_t count = 0, bytes = 0;");
    code.line(format!("ZAZEN_TRY({});", count::count_of(lengths, value, "&count")));
    let (max, element) = (count::max_of(param), param.ty.base.element());
    code.line(format!("ZAZEN_TRY(zazen_bytes(count, {max}, sizeof({element}), &bytes));"));
}

/// Lists the memory that is to travel, and lays out the tail.
fn segments(code: &mut Code, function: &Function) {
    if function.has_lines() {
        // The cast is for those who compile their client as C++.
        code.line(
            "segments = (struct zazen_segment *)calloc((size_t)(tail_max + in_max + out_max + 1), sizeof \
             *segments);",
        );
        code.line("ZAZEN_NEED(segments != NULL, ZAZEN_CALL_NO_MEMORY);");
        code.line("tail = segments;");
        code.line("in = tail + tail_max;");
        code.line("out = in + in_max;");
    }
    for (_, param) in function.tail(Direction::is_in) {
        let name = &param.name;
        if param.shape == Shape::Str && param.direction == Direction::InOut {
            let bytes = format!("strlen(a_{name}) + 1");
            let bytes = if param.nullok { format!("a_{name} == NULL ? 0 : {bytes}") } else { bytes };
            code.line(format!("ZAZEN_TRY(zazen_span_put(&q.s_{name}, &at, {bytes}));"));
        } else {
            code.line(format!("ZAZEN_TRY(zazen_span_put(&q.s_{name}, &at, b_{name}));"));
        }
        if param.shape == Shape::Arr2d {
            each_line(code, function, param, "tail[c.tail_count++]");
        } else {
            code.line(format!(
                "tail[c.tail_count++] = (struct zazen_segment){{(void *)(uintptr_t)a_{name}, \
                 q.s_{name}.bytes}};"
            ));
        }
    }
    for (is, word) in [(Direction::is_in as fn(Direction) -> bool, "in"), (Direction::is_out, "out")] {
        for (_, param) in function.segments(is) {
            let (name, slot) = (&param.name, format!("{word}[c.{word}_count++]"));
            if param.shape == Shape::Arr2d {
                each_line(code, function, param, &slot);
            } else {
                code.line(format!(
                    "{slot} = (struct zazen_segment){{(void *)(uintptr_t)a_{name}, b_{name}}};"
                ));
            }
        }
    }
}

fn each_line(code: &mut Code, function: &Function, param: &Param, slot: &str) {
    let name = &param.name;
    let lengths = count::lengths(function, param);
    code.line(format!("for (uint64_t i = 0; i < n_{name}; i++) {{"));
    line_bytes(code, param, lengths, &format!("a_{}[i]", lengths.name));
    code.line(format!("{slot} = (struct zazen_segment){{(void *)(uintptr_t)a_{name}[i], bytes}};"));
    code.line("}");
}

fn send(code: &mut Code, interface: &Interface, function: &Function) {
    code.line("c.fixed = &q;");
    code.line("c.fixed_bytes = sizeof q;");
    code.line("c.request_bytes = at;");
    let any = |kept: &mut dyn Iterator<Item = (usize, &Param)>| kept.next().is_some();
    let lines = function.has_lines();
    if lines || any(&mut function.tail(Direction::is_in)) {
        code.line("c.tail = tail;");
    }
    if lines || any(&mut function.segments(Direction::is_in)) {
        code.line("c.in = in;");
    }
    if lines || any(&mut function.segments(Direction::is_out)) {
        code.line("c.out = out;");
    }
    if function.params.iter().any(|param| param.fd && param.direction.is_in()) {
        code.line("c.fds = fds;");
    }
    if !function.oneway {
        code.line("c.reply_bytes_max = sizeof r;");
        for (_, param) in function.tail(Direction::is_out) {
            code.line(format!("ZAZEN_TRY(zazen_advance(&c.reply_bytes_max, b_{}));", param.name));
        }
    }
    let name = &interface.name;
    code.line(format!(
        "ZAZEN_TRY(zazen_stub_call(__atomic_load_n(&{name}_connection, __ATOMIC_ACQUIRE), &{name}_service, \
         &c));"
    ));
}

/// Checks all of the reply before any of it is stored.
fn check_reply(code: &mut Code, function: &Function) {
    code.line("ZAZEN_TRY(zazen_stub_reply(&c, &r, sizeof r));");
    code.line("at = sizeof r;");
    for param in function.params.iter().filter(|param| param.direction.is_out() && param.shape == Shape::Arr)
    {
        count::outcome(code, Side::Client, function, param);
    }
    for param in
        function.params.iter().filter(|param| param.direction.is_out() && param.shape == Shape::Arr2d)
    {
        count::lines_outcome(code, Side::Client, function, param);
    }
    for (_, param) in function.tail(Direction::is_out) {
        let name = &param.name;
        code.line(format!("ZAZEN_TRY(zazen_span_check(&r.s_{name}, &at, c.reply_bytes));"));
        match param.shape {
            Shape::Str => {
                let guard = if param.nullok { format!("if (a_{name} != NULL) ") } else { String::new() };
                code.line(format!("ZAZEN_NEED(r.s_{name}.bytes <= b_{name}, ZAZEN_CALL_MALFORMED);"));
                code.line(format!(
                    "{guard}ZAZEN_TRY(zazen_string_check(zazen_stub_at(&c, &r.s_{name}), r.s_{name}.bytes));"
                ));
            }
            Shape::Arr2d => {
                code.line("{");
                code.line("uint64_t total = 0;");
                each_line_back(code, function, param, "ZAZEN_TRY(zazen_advance(&total, bytes));");
                code.line(format!("ZAZEN_NEED(total == r.s_{name}.bytes, ZAZEN_CALL_MALFORMED);"));
                code.line("}");
            }
            _ => code.line(format!("ZAZEN_NEED(r.s_{name}.bytes == m_{name}, ZAZEN_CALL_MALFORMED);")),
        }
    }
    code.line("ZAZEN_NEED(at == c.reply_bytes, ZAZEN_CALL_MALFORMED);");
    let mut index = 0;
    for (_, param) in function.segments(Direction::is_out) {
        let name = &param.name;
        if param.shape == Shape::Arr2d {
            code.line("{");
            code.line(format!("uint64_t k = {index}{};", earlier_lines(function, param)));
            each_line_back(
                code,
                function,
                param,
                "ZAZEN_NEED(out[k++].bytes == bytes, ZAZEN_CALL_MALFORMED);",
            );
            code.line("}");
        } else {
            code.line(format!("ZAZEN_NEED(out[{index}].bytes == m_{name}, ZAZEN_CALL_MALFORMED);"));
            index += 1;
        }
    }
}

/// How many lines of other arr2d segments come before this one's.
fn earlier_lines(function: &Function, param: &Param) -> String {
    function
        .segments(Direction::is_out)
        .filter(|(_, other)| other.shape == Shape::Arr2d)
        .take_while(|(_, other)| other.name != param.name)
        .map(|(_, other)| format!(" + n_{}", other.name))
        .collect()
}

/// For each line `i`: `bytes` that came back (`was`: its room), then `statement`.
fn each_line_back(code: &mut Code, function: &Function, param: &Param, statement: &str) {
    let name = &param.name;
    let lengths = count::lengths(function, param);
    let (l, element) = (&lengths.name, lengths.ty.base.c());
    code.line(format!("for (uint64_t i = 0; i < n_{name}; i++) {{"));
    // A line whose length did not come back is empty.
    let value = match lengths.direction.is_out() {
        true => format!("((const {element} *)zazen_stub_at(&c, &r.s_{l}))[i]"),
        false => format!("a_{l}[i]"),
    };
    code.line(format!("const {element} length = i < k_{name} ? {value} : 0;"));
    line_bytes(code, param, lengths, "length");
    if lengths.direction.is_out() {
        code.line("uint64_t was = 0;");
        code.line(format!("ZAZEN_TRY({});", count::count_of(lengths, &format!("a_{l}[i]"), "&was")));
        code.line("ZAZEN_NEED(count <= was, ZAZEN_CALL_BAD_REPLY);");
    }
    code.lines(statement);
    code.line("}");
}

/// Stores what came. Only taking descriptors can fail here.
fn store(code: &mut Code, function: &Function) {
    for param in function.params.iter().filter(|param| param.direction.is_out() && param.fd) {
        code.line(format!("ZAZEN_TRY(zazen_stub_fd(&c, r.v_{0}, a_{0}));", param.name));
    }
    if function.fd {
        code.line("ZAZEN_TRY(zazen_stub_fd(&c, r.result, &result));");
    }
    // Lines first: their lengths are still those of the caller.
    for (_, param) in function.tail(Direction::is_out).filter(|(_, param)| param.shape == Shape::Arr2d) {
        let name = &param.name;
        code.line("{");
        code.line(format!("uint64_t from = r.s_{name}.offset;"));
        let copy = format!(
            "zazen_copy(a_{name}[i], (const unsigned char *)c.reply + from, bytes);\n\
             ZAZEN_TRY(zazen_advance(&from, bytes));"
        );
        each_line_back(code, function, param, &copy);
        code.line("}");
    }
    for (_, param) in function.tail(Direction::is_out).filter(|(_, param)| param.shape != Shape::Arr2d) {
        let name = &param.name;
        code.line(format!("zazen_copy(a_{name}, zazen_stub_at(&c, &r.s_{name}), r.s_{name}.bytes);"));
    }
    for param in function.params.iter().filter(|param| param.direction.is_out() && param.shape == Shape::Ptr)
    {
        let name = &param.name;
        let guard = if param.nullok { format!("if (a_{name} != NULL) ") } else { String::new() };
        if param.fd {
            continue;
        }
        code.line(if param.is_opaque() {
            format!("{guard}memcpy(a_{name}, r.o_{name}, sizeof *a_{name});")
        } else {
            format!("{guard}*a_{name} = ({})r.v_{name};", param.ty.base.c())
        });
    }
    match &function.result.base {
        _ if function.fd => {}
        Base::Void => {}
        Base::Opaque(_) => code.line("memcpy(&result, r.result, sizeof result);"),
        Base::Scalar(scalar) if scalar.class == Class::Bool => code.line("result = r.result != 0;"),
        base => code.line(format!("result = ({})r.result;", base.c())),
    }
}
