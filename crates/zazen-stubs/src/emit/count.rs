//! The C statements that find out how many elements an array has. They are the same on both sides,
//! except for where the values are.

use super::code::Code;
use crate::model::{Function, Param, Shape, Size};
use crate::types::Class;

/// Which side the code runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Dispatch,
}

/// The condition under which a nullok argument is not NULL.
pub(crate) fn present(side: Side, param: &Param) -> String {
    match side {
        Side::Client => format!("a_{} != NULL", param.name),
        Side::Dispatch => format!("q.has_{}", param.name),
    }
}

/// A statement's expression that turns integer `value` of `param`'s type into a count.
pub(crate) fn count_of(param: &Param, value: &str, into: &str) -> String {
    match param.ty.base.integer().map(|scalar| scalar.class) {
        Some(Class::Unsigned) => format!("zazen_count_unsigned((uint64_t){value}, {into})"),
        _ => format!("zazen_count_signed((int64_t){value}, {into})"),
    }
}

pub(crate) fn max_of(param: &Param) -> String {
    param.max.map_or("UINT64_MAX".to_owned(), |max| format!("UINT64_C({max})"))
}

/// Sets `n_X` (elements) and `b_X` (bytes) of an array, or of a string's buffer, on entry.
pub(crate) fn capacity(code: &mut Code, side: Side, function: &Function, param: &Param) {
    let name = &param.name;
    match param.size {
        Size::Fixed(count) => code.line(format!("n_{name} = UINT64_C({count});")),
        Size::None => code.line(format!("n_{name} = {};", max_of(param))),
        Size::Argument(target) => {
            let target = &function.params[target];
            let value = match (side, target.shape) {
                (Side::Client, Shape::Ptr) => format!("*a_{}", target.name),
                (Side::Client, _) => format!("a_{}", target.name),
                (Side::Dispatch, _) => format!("v_{}", target.name),
            };
            let count = format!("ZAZEN_TRY({});", count_of(target, &value, &format!("&n_{name}")));
            if target.nullok {
                code.line(format!("if ({})", present(side, target)));
                code.line(format!("    {count}"));
            } else {
                code.line(count);
            }
        }
    }
    let element = param.ty.base.element();
    code.line(format!("ZAZEN_TRY(zazen_bytes(n_{name}, {}, sizeof({element}), &b_{name}));", max_of(param)));
}

/// Sets `m_X`, the bytes of an output array after the call, from its size argument. `value` is
/// where that argument is: in the reply, or in the dispatcher's variable.
pub(crate) fn outcome(code: &mut Code, side: Side, function: &Function, param: &Param) {
    let name = &param.name;
    let changing = match param.size {
        Size::Argument(target) => Some(&function.params[target]).filter(|target| target.direction.is_out()),
        _ => None,
    };
    let Some(target) = changing else {
        code.line(format!("m_{name} = b_{name};"));
        return;
    };
    let value = match side {
        Side::Client => format!("r.v_{}", target.name),
        Side::Dispatch => format!("v_{}", target.name),
    };
    let mut condition = Vec::new();
    if target.nullok {
        condition.push(present(side, target));
    }
    if param.nullok {
        condition.push(present(side, param));
    }
    if !condition.is_empty() {
        code.line(format!("if ({}) {{", condition.join(" && ")));
    }
    code.line(format!(
        "ZAZEN_NEED({} == ZAZEN_CALL_OK, ZAZEN_CALL_BAD_REPLY);",
        count_of(target, &value, &format!("&m_{name}"))
    ));
    code.line(format!("ZAZEN_NEED(m_{name} <= n_{name}, ZAZEN_CALL_BAD_REPLY);"));
    code.line(format!("m_{name} *= sizeof({});", param.ty.base.element()));
    if !condition.is_empty() {
        code.line("}");
    }
}

/// Sets `k_X`, the number of lines of an output arr2d that have a length after the call. Further
/// lines are empty.
pub(crate) fn lines_outcome(code: &mut Code, side: Side, function: &Function, param: &Param) {
    let name = &param.name;
    let lengths = lengths(function, param);
    if lengths.direction.is_out() {
        code.line(format!("k_{name} = m_{0} / sizeof({1});", lengths.name, lengths.ty.base.c()));
        return;
    }
    let changing = match lengths.size {
        Size::Argument(target) => Some(&function.params[target]).filter(|target| target.direction.is_out()),
        _ => None,
    };
    let Some(target) = changing else {
        code.line(format!("k_{name} = n_{name};"));
        return;
    };
    let value = match side {
        Side::Client => format!("r.v_{}", target.name),
        Side::Dispatch => format!("v_{}", target.name),
    };
    let count = count_of(target, &value, &format!("&k_{name}"));
    if target.nullok {
        code.line(format!("if ({})", present(side, target)));
        code.line(format!("    ZAZEN_NEED({count} == ZAZEN_CALL_OK, ZAZEN_CALL_BAD_REPLY);"));
    } else {
        code.line(format!("ZAZEN_NEED({count} == ZAZEN_CALL_OK, ZAZEN_CALL_BAD_REPLY);"));
    }
    code.line(format!("ZAZEN_NEED(k_{name} <= n_{name}, ZAZEN_CALL_BAD_REPLY);"));
}

/// The lengths of an arr2d's lines.
pub(crate) fn lengths<'a>(function: &'a Function, param: &Param) -> &'a Param {
    match param.size {
        Size::Argument(target) => &function.params[target],
        // The checks refuse an arr2d without its lengths.
        _ => &function.params[0],
    }
}
