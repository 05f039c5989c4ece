//! Checks what was parsed: annotations against types, sizes against their targets.

use crate::annotation::{Annotation, SizeOption};
use crate::diagnostic::{Diagnostics, SourceSpan};
use crate::model::{Base, Direction, Function, Param, Shape, Size};
use crate::raw::{RawFunction, RawParam};

/// The most functions of a header, because their numbers have 16 bits.
const FUNCTIONS_MAX: usize = 4096;
/// The most parameters of a function: as many as C guarantees.
const PARAMS_MAX: usize = 127;

/// Checks all functions, and leaves out those with a mistake.
pub(crate) fn functions(raw: Vec<RawFunction>, diagnostics: &mut Diagnostics<'_>) -> Vec<Function> {
    let mut seen: Vec<(String, usize)> = Vec::new();
    if let Some(function) = raw.get(FUNCTIONS_MAX) {
        let message = format!("more than {FUNCTIONS_MAX} functions");
        diagnostics.error(function.name_place, message, "split the header into several plug-ins");
    }
    let mut checked = Vec::new();
    for function in raw {
        if let Some((_, line)) = seen.iter().find(|(name, _)| *name == function.name) {
            diagnostics.error(
                function.name_place,
                format!("`{}` is declared twice; first in line {line}", function.name),
                "remove one of them",
            );
            continue;
        }
        seen.push((function.name.clone(), function.line));
        checked.extend(self::function(function, diagnostics));
    }
    checked
}

fn function(raw: RawFunction, diagnostics: &mut Diagnostics<'_>) -> Option<Function> {
    let errors_before = diagnostics.error_count();
    if raw.params.len() > PARAMS_MAX {
        let message = format!("`{}` has more than {PARAMS_MAX} parameters", raw.name);
        diagnostics.error(raw.name_place, message, "put them into a struct");
    }
    let mut params: Vec<Param> = Vec::new();
    let mut sizes: Vec<Option<SizeOption>> = Vec::new();
    let mut complete = true;
    for (index, raw_param) in raw.params.iter().enumerate() {
        let name = raw_param.name.clone().unwrap_or_else(|| format!("arg{index}"));
        match (&raw_param.annotation, raw_param.broken) {
            (_, true) => complete = false,
            (None, false) => {
                complete = false;
                missing(&name, raw_param, diagnostics);
            }
            (Some(annotation), false) => {
                let param = param(name, raw_param, annotation, diagnostics);
                if params.iter().any(|other| other.name == param.name) {
                    let message = format!("two parameters are called `{}`", param.name);
                    diagnostics.error(raw_param.place, message, "rename one of them");
                }
                params.push(param);
                sizes.push(annotation.size);
            }
        }
    }
    // Relative indices mean nothing while parameters are missing.
    if complete {
        for (index, option) in sizes.iter().enumerate() {
            size(&mut params, index, *option, diagnostics);
        }
        userbufs(&params, diagnostics);
    }
    let mut function = Function {
        name: raw.name,
        result: raw.result,
        params,
        errno: false,
        blocking: false,
        oneway: false,
        idempotent: false,
        handle: None,
        fd: false,
        place: raw.name_place,
    };
    result(&function, diagnostics);
    words(&mut function, raw.words, diagnostics);
    (complete && diagnostics.error_count() == errors_before).then_some(function)
}

fn missing(name: &str, param: &RawParam, diagnostics: &mut Diagnostics<'_>) {
    let ty = &param.ty;
    let guess = match (ty.pointers.len(), &ty.base) {
        (0, _) => "/* in:obj */",
        (1, Base::Scalar(scalar)) if scalar.c == "char" && ty.base_const => "/* in:str */",
        (1, Base::Scalar(scalar)) if scalar.c == "char" => "/* out:str:max=… */ or /* in:str */",
        (1, Base::Void) if ty.base_const => "/* in:arr:size=+1 */",
        (1, Base::Void) => "/* out:arr:size=+1 */",
        (1, _) if ty.base_const => "/* in:ptr */ or /* in:arr:size=+1 */",
        (1, _) => "/* out:ptr */, /* inout:ptr */ or /* out:arr:size=+1 */",
        _ => "/* in:arr2d:size=+1 */ or /* out:arr2d:size=+1 */",
    };
    let remedy = format!("write {guess} between it and its comma");
    diagnostics.error(param.place, format!("parameter `{name}` has no annotation"), remedy);
}

/// One parameter by itself.
fn param(name: String, raw: &RawParam, annotation: &Annotation, diagnostics: &mut Diagnostics<'_>) -> Param {
    let fixed = match (annotation.shape, raw.ty.array) {
        (Shape::Arr, Some(count)) if annotation.size.is_none() => Size::Fixed(count),
        _ => Size::None,
    };
    let param = Param {
        name,
        ty: raw.ty.clone(),
        direction: annotation.direction,
        shape: annotation.shape,
        size: fixed,
        max: annotation.max,
        nullok: annotation.nullok,
        zerocopy: annotation.zerocopy,
        userbuf: annotation.userbuf,
        handle: annotation.handle.clone(),
        close: annotation.close,
        fd: annotation.fd,
        annotation_place: annotation.place,
    };
    shape(&param, raw.place, diagnostics);
    options(&param, diagnostics);
    param
}

/// The kind against the type.
fn shape(param: &Param, place: SourceSpan, diagnostics: &mut Diagnostics<'_>) {
    let Param { name, ty, shape, direction, .. } = param;
    let levels = ty.pointers.len();
    let mut wrong = |message: String, remedy: &str| diagnostics.error(place, message, remedy);
    match (shape, levels) {
        (Shape::Obj, 0) => {
            if ty.base == Base::Void {
                wrong(format!("parameter `{name}` has no type"), "write one");
            }
            if *direction != Direction::In {
                diagnostics.error(
                    param.annotation_place,
                    format!("`{name}` is passed by value: nothing can come back in it"),
                    "write in:obj, or pass a pointer with out:ptr or inout:ptr",
                );
            }
            return;
        }
        (Shape::Obj, _) => wrong(
            format!("`{name}` is a pointer, but obj means by value"),
            "use ptr for one object, arr for an array, str for a string",
        ),
        (_, 0) => {
            let message = format!("`{name}` is passed by value, but {} needs a pointer", shape.word());
            wrong(message, "use in:obj");
        }
        (Shape::Arr2d, 2) | (Shape::Ptr | Shape::Str | Shape::Arr, 1) => {}
        (Shape::Arr2d, _) => wrong(
            format!("`{name}` needs two levels of pointers for arr2d"),
            "declare it as TYPE **, or use arr for one dimension",
        ),
        (_, 2) => wrong(
            format!("`{name}` is a pointer to a pointer; {} can't carry that", shape.word()),
            "use arr2d for an array of lines; other pointers mean nothing at the far end",
        ),
        _ => wrong(format!("`{name}` has more than two levels of pointers"), "pass arrays instead"),
    }
    let is_char = matches!(&ty.base, Base::Scalar(scalar) if scalar.c == "char");
    if *shape == Shape::Str && !is_char {
        wrong(format!("`{name}` is no char *, so it can't be a str"), "use arr with size=");
    }
    if *shape == Shape::Ptr && ty.base == Base::Void {
        wrong(
            format!("nobody knows the size of what `{name}` points to"),
            "use arr with size= (an element of void is a byte), or name the type",
        );
    }
    let is_bool =
        matches!(&ty.base, Base::Scalar(scalar) if scalar.wire == "uint8_t" && scalar.rust == "bool");
    if matches!(shape, Shape::Arr | Shape::Arr2d) && is_bool {
        wrong(format!("`{name}`: bytes from afar may be neither true nor false"), "use uint8_t");
    }
    if direction.is_out() && ty.base_const {
        diagnostics.error(
            param.annotation_place,
            format!("`{name}` is const: nothing can come back in it"),
            "write in, or remove const",
        );
    }
}

/// The options against the kind.
fn options(param: &Param, diagnostics: &mut Diagnostics<'_>) {
    let Param { name, shape, direction, .. } = param;
    let mut wrong =
        |message: String, remedy: &str| diagnostics.error(param.annotation_place, message, remedy);
    let is_array = matches!(shape, Shape::Arr | Shape::Arr2d);
    if param.nullok && matches!(shape, Shape::Obj | Shape::Arr2d) {
        wrong(format!("nullok means nothing for {} `{name}`", shape.word()), "use it with ptr, str or arr");
    }
    if param.zerocopy && !is_array {
        wrong(
            format!("zerocopy on {} `{name}`", shape.word()),
            "only arr and arr2d go without a copy; remove it",
        );
    }
    if param.userbuf && !param.zerocopy {
        wrong(format!("userbuf on `{name}` without zerocopy"), "write zerocopy:userbuf");
    } else if param.userbuf && *shape == Shape::Arr2d {
        wrong(format!("userbuf on arr2d `{name}`"), "a userbuf is one buffer: use arr");
    } else if param.userbuf && *direction == Direction::InOut {
        wrong(format!("userbuf on inout `{name}`"), "pass two arguments, one in and one out");
    }
    if param.userbuf && param.nullok {
        wrong(
            format!("nullok on userbuf `{name}`: the plug-in could not tell"),
            "pass a size of 0 for nothing",
        );
    }
    if param.max.is_some() && !matches!(shape, Shape::Arr | Shape::Arr2d | Shape::Str) {
        wrong(format!("max= means nothing for {} `{name}`", shape.word()), "use it with str, arr or arr2d");
    }
    if let Size::Fixed(count) = param.size
        && param.max.is_some_and(|max| count > max)
    {
        wrong(format!("`{name}` has {count} elements, more than its max="), "raise max= or leave it out");
    }
    let carries_number = match shape {
        Shape::Obj => *direction == Direction::In,
        Shape::Ptr => *direction == Direction::Out && !param.nullok,
        _ => false,
    };
    for (set, word) in [(param.handle.is_some(), "handle"), (param.fd, "fd")] {
        if set && !(carries_number && param.ty.base.integer().is_some_and(|scalar| scalar.bytes >= 4)) {
            wrong(
                format!("{word} on `{name}`, which is neither an integer in:obj nor an out:ptr to one"),
                "use it with an int (or wider) in:obj or out:ptr",
            );
        }
    }
    if param.fd && param.ty.base.integer().is_some_and(|scalar| scalar.c != "int") {
        wrong(format!("descriptor `{name}` is no int"), "declare it as int");
    }
    if param.fd && param.handle.is_some() {
        wrong(
            format!("`{name}` is both handle and fd"),
            "handle: a number that the plug-in knows; fd: an open file",
        );
    }
    if param.close && (param.handle.is_none() || *direction != Direction::In) {
        wrong(format!("close on `{name}`, which is no in:obj:handle"), "write in:obj:handle:close");
    }
}

/// Resolves `size=`, and checks that each argument that needs one has one.
fn size(params: &mut [Param], index: usize, option: Option<SizeOption>, diagnostics: &mut Diagnostics<'_>) {
    let param = &params[index];
    let Some(option) = option else {
        let bounded = param.size != Size::None || (param.shape == Shape::Str && param.max.is_some());
        let needs = match param.shape {
            Shape::Arr | Shape::Arr2d => true,
            Shape::Str => param.direction.is_out(),
            Shape::Obj | Shape::Ptr => false,
        };
        if needs && !bounded {
            let remedy = match param.shape {
                Shape::Str => {
                    "add max=N, the bytes that the caller's buffer has, or size=±k, the argument that says so"
                }
                Shape::Arr2d => "add size=±k: the array that holds the lines' lengths",
                _ => "add size=±k: the argument that holds the number of elements (bytes of void)",
            };
            let message = format!("{} `{}` has no size", param.shape.word(), param.name);
            diagnostics.error(param.annotation_place, message, remedy);
        }
        return;
    };
    if !matches!(param.shape, Shape::Arr | Shape::Arr2d | Shape::Str)
        || (param.shape == Shape::Str && param.direction == Direction::In)
    {
        let message = format!("size= means nothing for {}:{}", param.direction.word(), param.shape.word());
        diagnostics.error(option.place, message, "remove it");
        return;
    }
    let target = i64::try_from(index).ok().and_then(|index| index.checked_add(option.offset));
    let target =
        target.and_then(|target| usize::try_from(target).ok()).filter(|target| *target < params.len());
    let Some(target) = target.filter(|target| *target != index) else {
        diagnostics.error(
            option.place,
            format!("size={:+} of `{}` means {}", option.offset, param.name, outside(index, option.offset)),
            format!("the function has {} arguments; +1 is the next one, -1 the one before", params.len()),
        );
        return;
    };
    if let Some((message, remedy)) = wrong_target(param, &params[target], &option) {
        diagnostics.error(option.place, message, remedy);
        return;
    }
    params[index].size = Size::Argument(target);
}

fn outside(index: usize, offset: i64) -> String {
    if offset == 0 {
        "itself".into()
    } else {
        format!("argument {}, which does not exist", index as i64 + offset + 1)
    }
}

fn wrong_target(param: &Param, target: &Param, option: &SizeOption) -> Option<(String, String)> {
    let Param { name, .. } = target;
    if target.ty.base.integer().is_none() {
        return Some((
            format!("`{name}`, which holds the size of `{}`, is no integer", param.name),
            "use an integer type, such as size_t".into(),
        ));
    }
    if param.shape == Shape::Arr2d {
        return match (target.shape, target.direction) {
            (Shape::Arr, Direction::In | Direction::InOut) if target.zerocopy => Some((
                format!("the line lengths `{name}` are zerocopy"),
                "remove that: lengths must be known before the lines move".into(),
            )),
            (Shape::Arr, Direction::In | Direction::InOut) if target.nullok => Some((
                format!("the line lengths `{name}` are nullok"),
                "remove that: without lengths there are no lines".into(),
            )),
            (Shape::Arr, Direction::In | Direction::InOut) => None,
            (Shape::Arr, Direction::Out) => Some((
                format!("the line lengths `{name}` are out: nobody knows them on entry"),
                "use in:arr, or inout:arr where the lengths change".into(),
            )),
            _ => Some((
                format!(
                    "`{name}` is {}, but the size of an arr2d is an array with each line's length",
                    target.shape.word()
                ),
                "use in:arr or inout:arr for the lengths, itself with size=".into(),
            )),
        };
    }
    match (target.shape, target.direction) {
        (Shape::Obj, Direction::In) if option.through_pointer => Some((
            format!("size=*{:+}: `{name}` is no pointer", option.offset),
            format!("write size={:+}", option.offset),
        )),
        (Shape::Obj, Direction::In) if target.handle.is_some() || target.fd => Some((
            format!("`{name}` is a handle or descriptor, no size"),
            "name the argument that holds the number of elements".into(),
        )),
        (Shape::Obj | Shape::Ptr, Direction::In) | (Shape::Ptr, Direction::InOut) => None,
        (Shape::Ptr, Direction::Out) => Some((
            format!("`{name}` is out: nobody knows the size of `{}` on entry", param.name),
            "use inout:ptr: capacity in, length out".into(),
        )),
        _ => Some((
            format!("`{name}` is {}, so it can't hold the size of `{}`", target.shape.word(), param.name),
            "a size is an in:obj, in:ptr or inout:ptr integer".into(),
        )),
    }
}

/// Each direction has at most one userbuf, because a plug-in's allocate callback and
/// register_userbuf do not name the argument.
fn userbufs(params: &[Param], diagnostics: &mut Diagnostics<'_>) {
    for direction in [Direction::In, Direction::Out] {
        let mut found = params.iter().filter(|param| param.userbuf && param.direction == direction);
        if let (Some(first), Some(second)) = (found.next(), found.next()) {
            diagnostics.error(
                second.annotation_place,
                format!("a second {} userbuf, after `{}`", direction.word(), first.name),
                "a function has at most one userbuf each way; leave userbuf off one of them",
            );
        }
    }
}

fn result(function: &Function, diagnostics: &mut Diagnostics<'_>) {
    let ty = &function.result;
    if !ty.pointers.is_empty() {
        diagnostics.error(
            function.place,
            format!("`{}` returns a pointer, which means nothing to its caller", function.name),
            "return through an argument (out:str, out:arr, out:ptr), or return a number as a handle",
        );
    }
}

fn words(
    function: &mut Function,
    words: Vec<(&'static str, Option<String>, SourceSpan)>,
    diagnostics: &mut Diagnostics<'_>,
) {
    let mut number = |word: &str, place: SourceSpan, int_only: bool| {
        let fits = |scalar: crate::types::Scalar| scalar.bytes >= 4 && (!int_only || scalar.c == "int");
        if !function.result.pointers.is_empty() || !function.result.base.integer().is_some_and(fits) {
            let message = format!("{word} on `{}`, whose result is no such number", function.name);
            diagnostics.error(place, message, if int_only { "return int" } else { "return int or int64_t" });
        }
    };
    for (word, value, place) in words {
        match word {
            "errno" => function.errno = true,
            "blocking" => function.blocking = true,
            "oneway" => function.oneway = true,
            "idempotent" => function.idempotent = true,
            "handle" => {
                number(word, place, false);
                function.handle = value;
            }
            _ => {
                number(word, place, true);
                function.fd = true;
            }
        }
    }
    let name = &function.name;
    if function.handle.is_some() && function.fd {
        diagnostics.error(function.place, format!("`{name}` is both handle and fd"), "choose one");
    }
    if function.oneway {
        if function.returns() || function.errno {
            diagnostics.error(
                function.place,
                format!("oneway `{name}` has a result: nobody waits for it"),
                "return void, without errno, or leave oneway off",
            );
        }
        if let Some(param) = function.params.iter().find(|param| param.direction.is_out()) {
            diagnostics.error(
                param.annotation_place,
                format!(
                    "`{}` of oneway `{name}` is {}: nobody waits for it",
                    param.name,
                    param.direction.word()
                ),
                "make it in, or leave oneway off",
            );
        }
    }
}
