//! Templates against the names that they make.

use super::*;
use proptest::prelude::*;

fn template(text: &str) -> NameTemplate {
    NameTemplate::parse(text).unwrap()
}

fn frame(number: u64) -> FrameNo {
    FrameNo::new(number).unwrap()
}

#[test]
fn templates_parse_and_print_alike() {
    for text in ["frame-{n:07}.dcd", "step{n}/data.vtu", "{n}", "a/b/{n:02}", "1{n}2", "{n:020}"] {
        assert_eq!(template(text).to_string(), text);
    }
    assert_eq!(template("x{n:01}").to_string(), "x{n}", "one digit is no padding");
}

#[test]
fn bad_templates_are_refused_by_name() {
    let too_long = format!("{}{{n}}", "x".repeat(250));
    for text in [
        "",
        "frame.dcd",
        "frame{n.dcd",
        "frame{}.dcd",
        "{m}",
        "{n:7}",
        "{n:0}",
        "{n:00}",
        "{n:021}",
        "{n:0+7}",
        "{n}{n}",
        "a}{n}",
        "../{n}",
        "a/../{n}",
        "/{n}",
        "a//{n}",
        "{n}/",
        "./{n}",
        ".zazen/{n}",
        "{n}\0",
        &too_long,
    ] {
        let error = NameTemplate::parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.context().starts_with("name template"), "{error}");
    }
}

#[test]
fn only_the_exact_spelling_is_a_number() {
    fn check(text: &str, name: &str, expected: Option<u64>) {
        assert_eq!(template(text).number(name).map(FrameNo::get), expected, "{text} of {name}");
    }
    check("f{n:03}.x", "f007.x", Some(7));
    check("f{n:03}.x", "f000.x", Some(0));
    check("f{n:03}.x", "f1000.x", Some(1000));
    check("f{n:03}.x", "f0100.x", None);
    check("f{n:03}.x", "f07.x", None);
    check("f{n:03}.x", "f007.xy", None);
    check("f{n:03}.x", "f.x", None);
    check("f{n}.x", "f0.x", Some(0));
    check("f{n}.x", "f00.x", None);
    check("f{n}.x", "f07.x", None);
    check("f{n}.x", "f+7.x", None);
    check("f{n}.x", "f٧.x", None);
    check("f{n}", "f1099511627776", Some(1 << 40));
    check("f{n}", "f1099511627777", None);
    check("f{n}", "f99999999999999999999999", None);
    check("ab{n}ba", "aba", None);
    check("s{n}/d.vtu", "s12/d.vtu", Some(12));
}

#[test]
fn folder_is_told_where_all_frames_share_one() {
    assert_eq!(template("f{n}").folder(), Some(RelPath::default()));
    assert_eq!(template("a/b/f{n}.x").folder(), RelPath::new("a/b").ok());
    assert_eq!(template("step{n}/data.vtu").folder(), None);
}

#[test]
fn detection_follows_the_majority() {
    fn check(names: &[&str], expected: Option<&str>) {
        let found = NameTemplate::detect(names.iter().copied()).map(|template| template.to_string());
        assert_eq!(found.as_deref(), expected, "{names:?}");
        let backwards = NameTemplate::detect(names.iter().rev().copied());
        assert_eq!(backwards.map(|template| template.to_string()), found, "order matters for {names:?}");
    }
    check(&[], None);
    check(&["topology.pdb", "README"], None);
    check(&["f-0001.dcd", "f-0002.dcd", "topol.pdb"], Some("f-{n:04}.dcd"));
    check(&["f-0999.dcd", "f-1000.dcd"], Some("f-{n:04}.dcd"));
    check(&["f-999.dcd", "f-1000.dcd"], Some("f-{n}.dcd"));
    check(&["f-100.dcd", "f-200.dcd"], Some("f-{n}.dcd"));
    check(&["f-099.x", "f-100.x", "f-1000.x"], Some("f-{n:03}.x"));
    check(&["f0.x", "f1.x", "f10.x"], Some("f{n}.x"));
    check(&["a1.x", "a2.x", "b1.y", "b2.y", "b3.y"], Some("b{n}.y"));
    check(&["b1", "b2", "a1", "a2"], Some("a{n}"));
    check(&["sim2-run3-7.vtu", "sim2-run3-8.vtu"], Some("sim2-run3-{n}.vtu"));
    check(&["step5/data.vtu", "step6/data.vtu"], Some("step{n}/data.vtu"));
    check(&["run1/f01.h5", "run1/f02.h5"], Some("run1/f{n:02}.h5"));
    check(&["movie.mp4"], Some("movie.mp{n}"));
    check(&["f.0007", "f.0008"], Some("f.{n:04}"));
    check(&["log-1699999999999.txt", "f1.x"], Some("f{n}.x"));
    check(&["/abs/1", "../2"], None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn name_and_number_are_inverse(
        prefix in "[a-z0-9_.-]{0,3}(/[a-z0-9]{1,3})?",
        suffix in "[a-z0-9_.-]{0,4}",
        width in 0usize..=20,
        number in prop_oneof![0u64..2000, 0u64..=(1 << 40)],
        other in "[a-z0-9/]{0,8}",
    ) {
        if let Ok(template) = NameTemplate::new(&prefix, width, &suffix) {
            let name = template.name(frame(number));
            prop_assert_eq!(template.number(&name), Some(frame(number)));
            let path = RelPath::new(&name).unwrap();
            prop_assert_eq!(path.as_str(), name.as_str());
            prop_assert_eq!(&NameTemplate::parse(&template.to_string()).unwrap(), &template);
            let strange = format!("{prefix}{other}{suffix}");
            if let Some(found) = template.number(&strange) {
                prop_assert_eq!(template.name(found), strange);
            }
        }
    }

    #[test]
    fn detection_finds_what_made_the_names(
        width in prop_oneof![Just(0usize), 2usize..8],
        numbers in prop::collection::btree_set(0u64..3000, 1..40),
    ) {
        let made = NameTemplate::new("run/f-", width, ".dcd").unwrap();
        let names: Vec<String> = numbers.iter().map(|number| made.name(frame(*number))).collect();
        let found = NameTemplate::detect(names.iter().map(String::as_str)).unwrap();
        for (name, number) in names.iter().zip(&numbers) {
            prop_assert_eq!(found.number(name), Some(frame(*number)));
        }
    }
}

fn part(step: u64, block: u64) -> FrameNo {
    frame(step * PARTS_PER_STEP_MAX + block)
}

#[test]
fn a_step_and_a_block_are_one_number() {
    fn check(text: &str, name: &str, expected: Option<(u64, u64)>) {
        let template = template(text);
        assert_eq!(template.to_string(), text);
        let expected = expected.map(|(step, block)| part(step, block));
        assert_eq!(template.number(name), expected, "{text} of {name}");
        if let Some(number) = expected {
            assert_eq!(template.name(number), name);
        }
    }
    check("step{t}/block{b}.vtu", "step12/block3.vtu", Some((12, 3)));
    check("step{t}/block{b}.vtu", "step12/block03.vtu", None);
    check("step{t}/block{b}.vtu", "step12/block1048576.vtu", None);
    check("s{t:04}_{b:02}.vti", "s0012_03.vti", Some((12, 3)));
    check("s{t:04}_{b:02}.vti", "s12_03.vti", None);
    check("{b}/{t}", "3/12", Some((12, 3)));
    // The step twice, as VTK's own writers name files.
    check("ts_{t}/ts_{t}_{b}.vti", "ts_7/ts_7_0.vti", Some((7, 0)));
    check("ts_{t}/ts_{t}_{b}.vti", "ts_7/ts_8_0.vti", None);
    check("ts_{t}/ts_{t:03}_{b}.vti", "ts_7/ts_007_0.vti", Some((7, 0)));
    // Digits beside a number belong to the text.
    check("a{t}0x0{b}1", "a120x031", Some((12, 3)));
    assert!(template("x{t}_{b}").has_parts() && !template("x{n}").has_parts());
    assert!(template("x{t}_{b}").spells("x007_02", part(7, 2)));
}

#[test]
fn templates_with_two_readings_are_refused() {
    for text in
        ["{t}{b}", "x{t}0{b}", "{t}", "{b}.vtu", "{n}/{b}", "{n}/{n}", "{t}/{t}", "{t}_{b}_{n}", "{t:4}/{b}"]
    {
        let error = NameTemplate::parse(text).expect_err(text);
        assert!(
            error.kind() == ErrorKind::InvalidArgument && error.context().contains("{t}/block{b}"),
            "{error}"
        );
    }
}

#[test]
fn levels_are_the_folders_to_list() {
    let levels = template("out/step{t}/b{b:02}.vtu").levels();
    let [Level::Fixed(out), Level::Numbered(step), Level::Numbered(file)] = &levels[..] else {
        panic!("{levels:?}")
    };
    assert!(out == "out" && step.may_be("step7") && !step.may_be("step07") && !step.may_be("stop7"));
    assert!(file.may_be("b07.vtu") && !file.may_be("b7.vtu"));
}

#[test]
fn names_of_steps_show_their_template() {
    fn check(steps: &[&[&str]], expected: Option<&str>) {
        let steps: Vec<Vec<&str>> = steps.iter().map(|step| step.to_vec()).collect();
        let found = NameTemplate::of_steps(&steps).map(|template| template.to_string());
        assert_eq!(found.as_deref(), expected, "{steps:?}");
    }
    check(&[&["s0/b0.u", "s0/b1.u"], &["s1/b0.u", "s1/b1.u"]], Some("s{t}/b{b}.u"));
    check(&[&["ts_9/ts_9_0.i", "ts_9/ts_9_1.i"], &["ts_10/ts_10_0.i"]], Some("ts_{t}/ts_{t}_{b}.i"));
    check(&[&["v2_t01_b001", "v2_t01_b002"], &["v2_t02_b001", "v2_t02_b002"]], Some("v2_t{t:02}_b{b:03}"));
    // Blocks with other numbers in each step, and a step without a block.
    check(&[&["t0_5", "t0_7"], &[], &["t3_1"]], Some("t{t}_{b}"));
    // One number.
    check(&[&["a-1.u", "a-2.u"]], Some("a-{n}.u"));
    check(&[&["s01/a.u"], &["s02/a.u"]], Some("s{n:02}/a.u"));
    // No template.
    check(&[&["a.u", "b.u"]], None);
    check(&[&["a1.u", "a2.i"]], None);
    check(&[&["i0_j0", "i0_j1", "i1_j0"]], None);
    check(&[&["s1/a1", "s1/a2"], &["s2/a1", "s1/a1"]], None);
    check(&[&["t7_1"], &["t07_2"]], None);
    check(&[&["x.u"]], None);
    check(&[], None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn parts_have_one_reading(
        texts in prop::collection::vec("[a-z0-9_/]{0,4}", 4),
        fields in prop::sample::select(vec!["tb", "bt", "ttb", "tbt", "btb"]),
        widths in prop::collection::vec(prop_oneof![Just(0usize), 2usize..6], 3),
        (step, block) in (0u64..3000, 0u64..(1 << 20)),
        (other_step, other_block) in (0u64..200, 0u64..200),
    ) {
        let mut text = String::new();
        for (at, field) in fields.chars().enumerate() {
            text.push_str(&texts[at]);
            match widths[at] {
                0 => text.push_str(&format!("{{{field}}}")),
                width => text.push_str(&format!("{{{field}:0{width}}}")),
            }
        }
        text.push_str(&texts[3]);
        if let Ok(template) = NameTemplate::parse(&text) {
            for number in [part(step, block), part(other_step, other_block)] {
                let name = template.name(number);
                prop_assert_eq!(template.number(&name), Some(number), "{} {}", text, name);
                prop_assert!(template.unpadded().spells(&name, number));
            }
            let steps: Vec<Vec<String>> = (0..3).map(|step| (0..3)
                .map(|block| template.name(part(other_step + step, other_block + block)))
                    .collect()).collect();
            // Digits of a text may join a number, so the numbers may be others; they are no fewer.
            if let Some(found) = NameTemplate::of_steps(&steps) {
                let numbers = steps.iter().flatten().map(|name| found.number(name));
                let numbers: std::collections::BTreeSet<_> = numbers.collect();
                prop_assert!(numbers.len() == 9 && !numbers.contains(&None));
            }
        }
    }
}
