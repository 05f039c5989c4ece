//! The messages and heads of the plug-ins service; the first byte picks which.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zazen_wire::Message;
use zazen_wire::plugins::*;

fn check<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        let again = M::decode(&message.encode()).expect("what was encoded decodes");
        assert_eq!(again, message);
    }
}

fn call_head(bytes: &[u8]) {
    if let Ok((head, of_segments, at)) = CallHead::take(bytes) {
        let mut again = Vec::new();
        head.put(sizes(of_segments), &mut again);
        assert_eq!(again.len(), at);
        assert_eq!(CallHead::take(&again).expect("what was put is taken"), (head, of_segments, at));
    }
}

fn answer_head(bytes: &[u8]) {
    if let Ok((head, of_segments, at)) = AnswerHead::take(bytes) {
        let mut again = vec![0; at];
        head.write_to(sizes(of_segments), &mut again);
        assert_eq!(AnswerHead::take(&again).expect("what was written is taken"), (head, of_segments, at));
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((pick, bytes)) = input.split_first() else { return };
    let checks: &[fn(&[u8])] = &[
        check::<About>,
        check::<Pong>,
        check::<Fate>,
        check::<Cancel>,
        check::<Open>,
        check::<OpenFor>,
        check::<Opened>,
        call_head,
        answer_head,
    ];
    checks[usize::from(*pick) % checks.len()](bytes);
});
