//! `NAME_dispatch.c`: the plug-in's side. A message in, a call of the plug-in's function, a message
//! out.
//!
//! Each dispatcher copies the fixed part once. It finds every piece of the tail at the place that
//! the one valid encoding gives it. It checks sizes before it asks for memory, and takes handles
//! last. If the function never runs, it frees what the plug-in allocated.

use super::client::{flags, line_bytes};
use super::code::{Code, banner, quote};
use super::count::{self, Side};
use crate::model::{Base, Direction, Function, Interface, Param, Shape};
use crate::types::Class;

pub(crate) fn text(interface: &Interface, schema: &str) -> String {
    let name = &interface.name;
    let what = "decodes calls, runs the plug-in's functions, and is its entry table";
    let mut code = Code::after(banner(interface, &format!("{name}_dispatch.c"), what));
    code.lines(&format!(
        "
        #include \"{name}_wire.h\"
        #include \"zazen_plugin.h\"
        "
    ));
    code.line(
        "/* Hidden: a function of the same name elsewhere in the process is not taken for the plug-in's. */",
    );
    for function in &interface.functions {
        let f = &function.name;
        code.line(format!("extern __typeof__({f}) {f} __attribute__((visibility(\"hidden\")));"));
        if userbuf_in(function).is_some() {
            for hook in ["allocate", "release"] {
                let weak = if hook == "release" { ", weak" } else { "" };
                code.line(format!(
                    "extern __typeof__({f}_{hook}_cb) {f}_{hook}_cb \
                     __attribute__((visibility(\"hidden\"){weak}));"
                ));
            }
        }
    }
    for function in &interface.functions {
        dispatcher(&mut code, interface, function);
    }
    table(&mut code, interface, schema);
    code.finish()
}

fn userbuf_in(function: &Function) -> Option<&Param> {
    function.params.iter().find(|param| param.userbuf && param.direction.is_in())
}

/// The variable that is passed for an argument.
fn passed(param: &Param) -> String {
    let name = &param.name;
    match param.shape {
        Shape::Obj => format!("v_{name}"),
        Shape::Ptr if param.nullok => format!("q.has_{name} ? &v_{name} : NULL"),
        Shape::Ptr => format!("&v_{name}"),
        _ => format!("p_{name}"),
    }
}

fn dispatcher(code: &mut Code, interface: &Interface, function: &Function) {
    let (name, f) = (&interface.name, &function.name);
    code.line("");
    code.line(format!("static int32_t dispatch_{f}(struct zazen_call *call)"));
    code.line("{");
    declarations(code, name, function);
    code.line("");
    code.line("ZAZEN_TRY(zazen_call_begin(call, &q, sizeof q, &base));");
    for param in &function.params {
        argument(code, param);
    }
    for (_, param) in one_dimension(function) {
        measure(code, function, param);
    }
    for (_, param) in function.tail(Direction::is_in).filter(|(_, param)| param.shape != Shape::Arr2d) {
        take_piece(code, param);
    }
    for (_, param) in lines(function) {
        measure_lines(code, function, param);
    }
    code.line("ZAZEN_NEED(at == call->message_bytes, ZAZEN_CALL_MALFORMED);");
    counts(code, function);
    memory(code, function);
    move_segments(code, function);
    handles(code, function);
    run(code, function);
    if !function.oneway {
        reply(code, function);
    }
    code.line("done:");
    if let Some(param) = userbuf_in(function) {
        code.line(format!("if (allocated && status != ZAZEN_CALL_OK && {f}_release_cb != NULL)"));
        code.line(format!("    {f}_release_cb(p_{}, status);", param.name));
    }
    code.line("return status;");
    code.line("}");
}

fn one_dimension(function: &Function) -> impl Iterator<Item = (usize, &Param)> {
    let wanted = |param: &Param| matches!(param.shape, Shape::Arr | Shape::Str);
    function.params.iter().enumerate().filter(move |(_, param)| wanted(param))
}

fn lines(function: &Function) -> impl Iterator<Item = (usize, &Param)> {
    function.params.iter().enumerate().filter(|(_, param)| param.shape == Shape::Arr2d)
}

fn declarations(code: &mut Code, name: &str, function: &Function) {
    let f = &function.name;
    code.line(format!("struct {name}_{f}_request q;"));
    if !function.oneway {
        code.line(format!("struct {name}_{f}_reply r;"));
    }
    code.line("unsigned char *base;");
    code.line("uint64_t at = sizeof q;");
    code.line("int32_t status = ZAZEN_CALL_OK;");
    if userbuf_in(function).is_some() {
        code.line("int allocated = 0;");
    }
    for param in &function.params {
        let (name, c) = (&param.name, param.ty.base.c());
        match param.shape {
            Shape::Obj | Shape::Ptr => {
                let start = if param.is_opaque() { "" } else { " = 0" };
                code.line(format!("{c} v_{name}{start};"));
            }
            Shape::Str => {
                code.line(format!("char *p_{name} = NULL;"));
                code.line(match param.direction {
                    Direction::In => String::new(),
                    _ => format!("uint64_t n_{name} = 0, b_{name} = 0;"),
                });
            }
            Shape::Arr => {
                code.line(format!("void *p_{name} = NULL;"));
                let outcome =
                    if param.direction.is_out() { format!(", m_{name} = 0") } else { String::new() };
                code.line(format!("uint64_t n_{name} = 0, b_{name} = 0{outcome};"));
            }
            Shape::Arr2d => {
                let constant = if param.ty.base_const { "const " } else { "" };
                code.line(format!("{constant}{c} **p_{name} = NULL;"));
                code.line(format!("struct zazen_segment *l_{name} = NULL;"));
                let outcome =
                    if param.direction.is_out() { format!(", k_{name} = 0") } else { String::new() };
                code.line(format!("uint64_t n_{name} = 0, b_{name} = 0{outcome};"));
            }
        }
    }
    if function.returns() {
        code.line(format!("{} result;", function.result.base.c()));
    }
    if function.errno {
        code.line("int error_number;");
    }
}

fn argument(code: &mut Code, param: &Param) {
    let (name, c) = (&param.name, param.ty.base.c());
    if param.nullok {
        code.line(format!("ZAZEN_NEED(q.has_{name} <= 1, ZAZEN_CALL_MALFORMED);"));
    }
    match param.shape {
        Shape::Obj if param.handle.is_some() => {}
        Shape::Obj if param.fd => {
            code.line(format!("v_{name} = q.v_{name};"));
            code.line(format!("if (v_{name} >= 0) {{"));
            code.line(format!("ZAZEN_NEED((uint32_t)v_{name} < call->fd_count, ZAZEN_CALL_MALFORMED);"));
            code.line(format!("v_{name} = call->fds[v_{name}];"));
            code.line("}");
        }
        Shape::Obj | Shape::Ptr if param.is_opaque() => code.line(match param.direction.is_in() {
            true => format!("memcpy(&v_{name}, q.o_{name}, sizeof v_{name});"),
            false => format!("memset(&v_{name}, 0, sizeof v_{name});"),
        }),
        Shape::Obj | Shape::Ptr if param.direction.is_in() => {
            code.line(format!("v_{name} = ({c})q.v_{name};"))
        }
        _ => {}
    }
}

/// How many elements the client announces. max= bounds the number, and so does the message, before
/// memory is asked for.
fn measure(code: &mut Code, function: &Function, param: &Param) {
    if param.shape == Shape::Str && param.direction == Direction::In {
        return;
    }
    if param.nullok {
        code.line(format!("if ({}) {{", count::present(Side::Dispatch, param)));
    }
    count::capacity(code, Side::Dispatch, function, param);
    if param.shape == Shape::Str {
        code.line(format!("ZAZEN_NEED(n_{} > 0, ZAZEN_CALL_MALFORMED);", param.name));
    }
    if param.nullok {
        code.line("}");
    }
}

/// A string or array from the tail.
fn take_piece(code: &mut Code, param: &Param) {
    let name = &param.name;
    code.line(format!("ZAZEN_TRY(zazen_span_check(&q.s_{name}, &at, call->message_bytes));"));
    if param.shape == Shape::Arr {
        code.line(format!("ZAZEN_NEED(q.s_{name}.bytes == b_{name}, ZAZEN_CALL_MALFORMED);"));
        let present = if param.nullok { format!("if (q.has_{name}) ") } else { String::new() };
        code.line(format!("{present}p_{name} = base + q.s_{name}.offset;"));
        return;
    }
    if param.nullok {
        code.line(format!("ZAZEN_NEED(q.has_{name} || q.s_{name}.bytes == 0, ZAZEN_CALL_MALFORMED);"));
        code.line(format!("if (q.has_{name}) {{"));
    }
    code.line(format!("p_{name} = (char *)base + q.s_{name}.offset;"));
    code.line(format!("ZAZEN_TRY(zazen_string_check(p_{name}, q.s_{name}.bytes));"));
    let limit = if param.direction.is_out() { format!("b_{name}") } else { count::max_of(param) };
    if limit != "UINT64_MAX" {
        code.line(format!("ZAZEN_NEED(q.s_{name}.bytes <= {limit}, ZAZEN_CALL_TOO_LARGE);"));
    }
    if param.nullok {
        code.line("}");
    }
}

/// Finds the lines of an arr2d: their memory in the message, or their sizes.
fn measure_lines(code: &mut Code, function: &Function, param: &Param) {
    let name = &param.name;
    let lengths = count::lengths(function, param);
    let (l, element) = (&lengths.name, lengths.ty.base.c());
    code.line(format!("n_{name} = n_{l};"));
    let limit = if param.zerocopy { "ZAZEN_SEGMENTS_MAX" } else { "ZAZEN_LINES_MAX" };
    code.line(format!("ZAZEN_NEED(n_{name} <= {limit}, ZAZEN_CALL_TOO_LARGE);"));
    code.line(format!("l_{name} = call->ops->allocate(call, n_{name} * sizeof *l_{name} + 1);"));
    code.line(format!("p_{name} = call->ops->allocate(call, n_{name} * sizeof *p_{name} + 1);"));
    code.line(format!("ZAZEN_NEED(l_{name} != NULL && p_{name} != NULL, ZAZEN_CALL_NO_MEMORY);"));
    let taken = param.in_tail() && param.direction.is_in();
    if taken {
        code.line("{");
        code.line("uint64_t from = at;");
        code.line(format!("ZAZEN_TRY(zazen_span_check(&q.s_{name}, &at, call->message_bytes));"));
    }
    code.line(format!("for (uint64_t i = 0; i < n_{name}; i++) {{"));
    line_bytes(code, param, lengths, &format!("((const {element} *)p_{l})[i]"));
    code.line(format!("l_{name}[i].bytes = bytes;"));
    if taken {
        code.line(format!("l_{name}[i].pointer = base + from;"));
        code.line("ZAZEN_TRY(zazen_advance(&from, bytes));");
        // Checked within the loop: no pointer may be made to a line beyond the span.
        code.line("ZAZEN_NEED(from <= at, ZAZEN_CALL_MALFORMED);");
    }
    code.line(format!("ZAZEN_TRY(zazen_advance(&b_{name}, bytes));"));
    code.line("}");
    if taken {
        code.line("ZAZEN_NEED(from == at, ZAZEN_CALL_MALFORMED);");
        code.line("}");
    }
}

/// Whether the client announced exactly the segments that the arguments need, and room for the
/// reply.
fn counts(code: &mut Code, function: &Function) {
    for (is, word) in [(Direction::is_in as fn(Direction) -> bool, "in"), (Direction::is_out, "out")] {
        let single = function.segments(is).filter(|(_, param)| param.shape == Shape::Arr).count();
        let many: String = function
            .segments(is)
            .filter(|(_, param)| param.shape == Shape::Arr2d)
            .map(|(_, param)| format!(" + n_{}", param.name))
            .collect();
        code.line(format!("ZAZEN_NEED(call->{word}_count == {single}{many}, ZAZEN_CALL_MALFORMED);"));
    }
    if function.oneway {
        return;
    }
    code.line("at = sizeof r;");
    for (_, param) in function.tail(Direction::is_out) {
        code.line(format!("ZAZEN_TRY(zazen_advance(&at, b_{}));", param.name));
    }
    code.line("ZAZEN_NEED(at <= call->reply_bytes_max, ZAZEN_CALL_TOO_LARGE);");
}

/// Memory for outputs that are not in the message already.
fn memory(code: &mut Code, function: &Function) {
    for (_, param) in function.tail(Direction::is_out) {
        let name = &param.name;
        let guard = if param.nullok { format!("if (q.has_{name}) ") } else { String::new() };
        match (param.shape, param.direction) {
            (Shape::Arr, Direction::Out) => {
                code.line(format!("{guard}ZAZEN_TRY(zazen_call_memory(call, b_{name}, &p_{name}));"));
            }
            (Shape::Str, direction) => {
                code.line(if param.nullok { format!("if (q.has_{name}) {{") } else { "{".into() });
                code.line("void *room;");
                code.line(format!("ZAZEN_TRY(zazen_call_memory(call, b_{name}, &room));"));
                if direction == Direction::InOut {
                    code.line(format!("memcpy(room, p_{name}, (size_t)q.s_{name}.bytes);"));
                }
                code.line(format!("p_{name} = room;"));
                code.line("}");
            }
            (Shape::Arr2d, Direction::Out) => {
                code.line(format!("for (uint64_t i = 0; i < n_{name}; i++)"));
                code.line(format!(
                    "    ZAZEN_TRY(zazen_call_memory(call, l_{name}[i].bytes, &l_{name}[i].pointer));"
                ));
            }
            _ => {}
        }
    }
}

/// Zerocopy arguments. The plug-in's own buffer comes last, so that after it only handles can fail.
fn move_segments(code: &mut Code, function: &Function) {
    let position = |is: fn(Direction) -> bool, wanted: usize| {
        let before: Vec<(usize, &Param)> =
            function.segments(is).take_while(|(index, _)| *index != wanted).collect();
        let single = before.iter().filter(|(_, param)| param.shape == Shape::Arr).count();
        let many: String = before
            .iter()
            .filter(|(_, param)| param.shape == Shape::Arr2d)
            .map(|(_, param)| format!(" + n_{}", param.name))
            .collect();
        format!("{single}{many}")
    };
    let mut moved: Vec<(usize, &Param)> = function.segments(|_| true).collect();
    moved.sort_by_key(|(_, param)| param.userbuf && param.direction.is_in());
    for (index, param) in moved {
        let (name, element) = (&param.name, param.ty.base.element());
        let is_lines = param.shape == Shape::Arr2d;
        let plus = if is_lines { " + i" } else { "" };
        let (bytes, pointer) = match is_lines {
            true => (format!("l_{name}[i].bytes"), format!("&l_{name}[i].pointer")),
            false => (format!("b_{name}"), format!("&p_{name}")),
        };
        if is_lines {
            code.line(format!("for (uint64_t i = 0; i < n_{name}; i++) {{"));
        }
        let mut step = |what: &str, is: fn(Direction) -> bool, pointer: &str| {
            let at = position(is, index);
            code.line(format!(
                "ZAZEN_TRY(zazen_call_{what}(call, (uint32_t)({at}{plus}), {bytes}, _Alignof({element}), \
                 {pointer}));"
            ));
        };
        if param.direction.is_out() {
            step("prepare", Direction::is_out, if param.userbuf { "NULL" } else { &pointer });
        }
        if param.direction.is_in() {
            if param.userbuf {
                let f = &function.name;
                let at = position(Direction::is_in, index);
                code.line(format!("ZAZEN_NEED(call->in_bytes[{at}] == b_{name}, ZAZEN_CALL_MALFORMED);"));
                code.line(format!("p_{name} = {f}_allocate_cb(b_{name});"));
                code.line(format!("ZAZEN_NEED(p_{name} != NULL || b_{name} == 0, ZAZEN_CALL_NO_MEMORY);"));
                code.line(format!("allocated = p_{name} != NULL;"));
                code.line(format!(
                    "ZAZEN_TRY(zazen_call_receive(call, (uint32_t)({}), {bytes}, _Alignof({element}), \
                     {pointer}));",
                    position(Direction::is_in, index)
                ));
            } else {
                step("receive", Direction::is_in, &pointer);
            }
        }
        if is_lines {
            code.line("}");
        }
        if param.nullok {
            code.line(format!("if (!q.has_{name})"));
            code.line(format!("    p_{name} = NULL;"));
        }
    }
    for (_, param) in lines(function) {
        let name = &param.name;
        code.line(format!("for (uint64_t i = 0; i < n_{name}; i++)"));
        code.line(format!("    p_{name}[i] = l_{name}[i].pointer;"));
    }
}

fn handles(code: &mut Code, function: &Function) {
    let mut found: Vec<&Param> =
        function.params.iter().filter(|param| param.shape == Shape::Obj && param.handle.is_some()).collect();
    found.sort_by_key(|param| param.close);
    for param in found {
        let (name, c) = (&param.name, param.ty.base.c());
        let kind = param.handle.as_deref().unwrap_or("handle");
        let what = if param.close { "remove" } else { "get" };
        code.line("{");
        code.line("int64_t value;");
        code.line(format!("ZAZEN_TRY(call->ops->handle_{what}(call, \"{kind}\", q.v_{name}, &value));"));
        code.line(format!("v_{name} = ({c})value;"));
        code.line("}");
    }
}

fn run(code: &mut Code, function: &Function) {
    let arguments: Vec<String> = function.params.iter().map(passed).collect();
    let call = format!("{}({});", function.name, arguments.join(", "));
    if userbuf_in(function).is_some() {
        code.line("allocated = 0; /* the function's now */");
    }
    if function.errno {
        code.line("errno = 0;");
    }
    code.line(if function.returns() { format!("result = {call}") } else { call });
    if function.errno {
        code.line("error_number = errno;");
    }
}

fn reply(code: &mut Code, function: &Function) {
    code.line("memset(&r, 0, sizeof r);");
    results(code, function);
    for param in function.params.iter().filter(|param| param.direction.is_out() && param.shape == Shape::Arr)
    {
        count::outcome(code, Side::Dispatch, function, param);
    }
    code.line("at = sizeof r;");
    for (_, param) in lines(function).filter(|(_, param)| param.direction.is_out()) {
        lines_after(code, function, param);
    }
    for (_, param) in function.tail(Direction::is_out) {
        let name = &param.name;
        match param.shape {
            Shape::Str => {
                let guard = if param.nullok { format!("!q.has_{name} || ") } else { String::new() };
                let bytes = format!("strlen(p_{name}) + 1");
                let bytes = if param.nullok { format!("q.has_{name} ? {bytes} : 0") } else { bytes };
                code.line(format!(
                    "ZAZEN_NEED({guard}memchr(p_{name}, 0, (size_t)b_{name}) != NULL, ZAZEN_CALL_BAD_REPLY);"
                ));
                code.line(format!("ZAZEN_TRY(zazen_span_put(&r.s_{name}, &at, {bytes}));"));
            }
            Shape::Arr2d => code.line(format!("ZAZEN_TRY(zazen_span_put(&r.s_{name}, &at, b_{name}));")),
            _ => code.line(format!("ZAZEN_TRY(zazen_span_put(&r.s_{name}, &at, m_{name}));")),
        }
    }
    send_segments(code, function);
    code.line("{");
    code.line("void *message;");
    code.line("ZAZEN_TRY(call->ops->reply(call, at, &message));");
    code.line("memcpy(message, &r, sizeof r);");
    for (_, param) in function.tail(Direction::is_out) {
        let name = &param.name;
        if param.shape == Shape::Arr2d {
            code.line("{");
            code.line(format!("struct zazen_span line = {{r.s_{name}.offset, 0}};"));
            code.line(format!("for (uint64_t i = 0; i < n_{name}; i++) {{"));
            code.line(format!("line.bytes = l_{name}[i].bytes;"));
            code.line(format!("zazen_reply_put(message, &line, l_{name}[i].pointer);"));
            code.line("line.offset += (line.bytes + 7) & ~UINT64_C(7);");
            code.line("}");
            code.line("}");
        } else {
            code.line(format!("zazen_reply_put(message, &r.s_{name}, p_{name});"));
        }
    }
    code.line("}");
}

/// The condition under which the function says that it worked.
pub(crate) fn worked(function: &Function) -> &'static str {
    match &function.result.base {
        Base::Scalar(scalar) if scalar.class == Class::Signed => "result >= 0",
        _ => "1",
    }
}

/// The result and what pointers point to, into the fixed part.
fn results(code: &mut Code, function: &Function) {
    let worked = worked(function);
    if function.errno {
        code.line("r.error_number = error_number;");
    }
    let enter = |code: &mut Code, value: &str, field: &str, kind: &Option<String>, condition: &str| {
        // A failed call gives no handle, so no number of the plug-in goes out as one.
        let otherwise = if field == "result" { "(int64_t)result" } else { "-1" };
        code.line(format!("r.{field} = {otherwise};"));
        code.line(format!("if ({condition})"));
        match kind {
            Some(kind) => code.line(format!(
                "    ZAZEN_TRY(call->ops->handle_enter(call, \"{kind}\", (int64_t){value}, &r.{field}));"
            )),
            None => code.line(format!("    ZAZEN_TRY(call->ops->send_fd(call, {value}, &r.{field}));")),
        }
    };
    if function.handle.is_some() || function.fd {
        enter(code, "result", "result", &function.handle, worked);
    } else {
        match &function.result.base {
            Base::Void => {}
            Base::Opaque(_) => code.line("memcpy(r.result, &result, sizeof result);"),
            Base::Scalar(scalar) => code.line(format!("r.result = ({})result;", scalar.wire)),
            Base::Enum(_) => code.line("r.result = (uint32_t)result;"),
        }
    }
    for param in function.params.iter().filter(|param| param.direction.is_out() && param.shape == Shape::Ptr)
    {
        let name = &param.name;
        if param.handle.is_some() || param.fd {
            let sign = match param.ty.base.integer() {
                Some(scalar) if scalar.class == Class::Signed => format!("v_{name} >= 0"),
                _ => "1".to_owned(),
            };
            let condition = format!("{worked} && {sign}");
            enter(code, &format!("v_{name}"), &format!("v_{name}"), &param.handle, &condition);
        } else if param.is_opaque() {
            code.line(format!("memcpy(r.o_{name}, &v_{name}, sizeof v_{name});"));
        } else {
            code.line(format!("r.v_{name} = ({})v_{name};", super::client::wire_type(param)));
        }
    }
}

/// The lines' lengths after the call: no more than there was room for.
fn lines_after(code: &mut Code, function: &Function, param: &Param) {
    let name = &param.name;
    let lengths = count::lengths(function, param);
    let (l, element) = (&lengths.name, lengths.ty.base.c());
    count::lines_outcome(code, Side::Dispatch, function, param);
    code.line(format!("b_{name} = 0;"));
    code.line(format!("for (uint64_t i = 0; i < n_{name}; i++) {{"));
    code.line(format!("const {element} length = i < k_{name} ? ((const {element} *)p_{l})[i] : 0;"));
    line_bytes(code, param, lengths, "length");
    code.line(format!("ZAZEN_NEED(bytes <= l_{name}[i].bytes, ZAZEN_CALL_BAD_REPLY);"));
    code.line(format!("l_{name}[i].bytes = bytes;"));
    code.line(format!("ZAZEN_TRY(zazen_advance(&b_{name}, bytes));"));
    code.line("}");
}

fn send_segments(code: &mut Code, function: &Function) {
    let mut earlier = String::new();
    let mut single = 0;
    for (_, param) in function.segments(Direction::is_out) {
        let name = &param.name;
        if param.shape == Shape::Arr2d {
            code.line(format!("for (uint64_t i = 0; i < n_{name}; i++)"));
            code.line(format!(
                "    ZAZEN_TRY(call->ops->send(call, (uint32_t)({single}{earlier} + i), l_{name}[i].pointer, \
                 l_{name}[i].bytes));"
            ));
            earlier.push_str(&format!(" + n_{name}"));
            continue;
        }
        let pointer = if param.userbuf { "call->userbuf".to_owned() } else { format!("p_{name}") };
        if param.userbuf {
            code.line(format!("ZAZEN_NEED(call->userbuf != NULL || m_{name} == 0, ZAZEN_CALL_BAD_REPLY);"));
        }
        code.line(format!("ZAZEN_TRY(call->ops->send(call, {single}, {pointer}, m_{name}));"));
        single += 1;
    }
}

fn table(code: &mut Code, interface: &Interface, schema: &str) {
    let name = &interface.name;
    let upper = name.to_uppercase();
    let marker = &interface.marker;
    code.line("");
    code.line("static const char schema[] =");
    for line in schema.lines() {
        code.line(format!("    \"{}\\n\"", quote(line)));
    }
    code.line("    ;");
    code.line("");
    code.line("static const struct zazen_function functions[] = {");
    for function in &interface.functions {
        let allocate = match userbuf_in(function) {
            Some(_) => format!("{}_allocate_cb", function.name),
            None => "NULL".into(),
        };
        code.line(format!("{{\"{0}\", dispatch_{0}, {1}, 0, {allocate}}},", function.name, flags(function)));
    }
    code.line("};");
    code.line("");
    code.lines(
        "static const struct zazen_host *plugin_host;

        const struct zazen_host *zazen_plugin_host(void)
        {
        return plugin_host;
        }
        ",
    );
    init(code, marker.init.as_deref());
    if marker.hooks().next().is_some() {
        code.line("/* The generated tests run without the plug-in's own code. */");
        code.line("#ifdef ZAZEN_WITHOUT_HOOKS");
        code.line("#define HOOK(function) NULL");
        code.line("#else");
        code.line("#define HOOK(function) function");
        code.line("#endif");
        code.line("");
    }
    let hook = |hook: &Option<String>| match hook {
        Some(hook) => format!("HOOK({hook})"),
        None => "NULL".to_owned(),
    };
    code.lines(&format!(
        "__attribute__((visibility(\"default\"))) extern const struct zazen_plugin zazen_plugin_v1;

        const struct zazen_plugin zazen_plugin_v1 = {{
        .abi = ZAZEN_PLUGIN_ABI,
        .struct_size = sizeof(struct zazen_plugin),
        .id = {upper}_ID,
        .function_count = {upper}_FUNCTIONS,
        .name = \"{name}\",
        .schema = schema,
        .schema_hash = {upper}_SCHEMA_HASH,
        .layout_hash = {upper}_LAYOUT_HASH,
        .functions = functions,
        .function_bytes = sizeof(struct zazen_function),
        .init = plugin_init,
        .fini = {},
        .client_attach = {},
        .client_detach = {},{}
        }};",
        hook(&marker.fini),
        hook(&marker.attach),
        hook(&marker.detach),
        if marker.acts_as_caller { "\n.flags = ZAZEN_PLUGIN_ACTS_AS_CALLER," } else { "" },
    ));
}

/// INIT may have any of these forms. Only the compiler knows which one the header declares.
fn init(code: &mut Code, init: Option<&str>) {
    code.line("static int plugin_init(const struct zazen_host *host)");
    code.line("{");
    code.line("plugin_host = host;");
    let Some(init) = init else {
        code.line("return 0;");
        code.line("}");
        code.line("");
        return;
    };
    code.line("#ifdef ZAZEN_WITHOUT_HOOKS");
    code.line("return 0;");
    code.line("#else");
    code.line(format!("void (*init)(void) = (void (*)(void)){init};"));
    code.line("/* One of these is INIT's type: the header's declaration says which. */");
    let forms = [
        ("void(int)", "((void (*)(int))init)(host->process_count)"),
        ("void(void)", "init()"),
        ("int(int)", "((int (*)(int))init)(host->process_count)"),
        ("int(void)", "((int (*)(void))init)()"),
        ("int(const struct zazen_host *)", "((int (*)(const struct zazen_host *))init)(host)"),
    ];
    let is = |form: &str| format!("__builtin_types_compatible_p(__typeof__({init}), {form})");
    code.line("_Static_assert(");
    for (index, (form, _)) in forms.iter().enumerate() {
        let end = if index + 1 < forms.len() { " ||" } else { "," };
        code.line(format!("    {}{end}", is(form)));
    }
    code.line(format!(
        "    \"INIT={init} must be void or int of (int nproc) or (void), or int of (const struct zazen_host \
         *)\");"
    ));
    for (form, call) in forms {
        code.line(format!("if ({})", is(form)));
        code.line(match form.starts_with("void") {
            true => format!("    return {call}, 0;"),
            false => format!("    return {call};"),
        });
    }
    code.line("return -1;");
    code.line("#endif");
    code.line("}");
    code.line("");
}
