//! Logarithm, exponential and normal quantile from additions, multiplications, divisions and square
//! roots only. IEEE 754 fixes these bit by bit, and a platform's mathematical library does not, so
//! a run gives the same bytes on every machine.

/// Natural logarithm of a positive number; error below 1e-14, relative.
pub fn ln(x: f64) -> f64 {
    debug_assert!(x > 0.0 && x.is_finite());
    let (x, scaled) = if x < f64::MIN_POSITIVE { (x * (1_u64 << 54) as f64, 54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) as i64) - 1023 - scaled;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), with |argument| below 0.1716.
    let argument = (mantissa - 1.0) / (mantissa + 1.0);
    let square = argument * argument;
    let mut sum = 0.0;
    for term in (0..13).rev() {
        sum = sum * square + 1.0 / (2 * term + 1) as f64;
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * argument * sum
}

/// The exponential function; 0 and infinity beyond the range of numbers.
pub fn exp(x: f64) -> f64 {
    if x < -745.0 {
        return 0.0;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    let power = (x * std::f64::consts::LOG2_E + if x < 0.0 { -0.5 } else { 0.5 }) as i64;
    let rest = x - power as f64 * std::f64::consts::LN_2;
    let mut sum = 1.0;
    for term in (1..16).rev() {
        sum = 1.0 + sum * rest / term as f64;
    }
    let half = power / 2;
    let scale = |power: i64| f64::from_bits(((power + 1023) as u64) << 52);
    sum * scale(half) * scale(power - half)
}

/// The number below which a standard normal variable lies with probability `p`, which is between 0
/// and 1 (Wichura's algorithm AS 241; error about 1e-16, relative).
pub fn normal_quantile(p: f64) -> f64 {
    const CENTRE: ([f64; 8], [f64; 8]) = (
        [
            3.387_132_872_796_366_5,
            133.141_667_891_784_38,
            1_971.590_950_306_551_3,
            13_731.693_765_509_46,
            45_921.953_931_549_87,
            67_265.770_927_008_7,
            33_430.575_583_588_13,
            2_509.080_928_730_122_7,
        ],
        [
            1.0,
            42.313_330_701_600_91,
            687.187_007_492_057_9,
            5_394.196_021_424_751,
            21_213.794_301_586_597,
            39_307.895_800_092_71,
            28_729.085_735_721_943,
            5_226.495_278_852_545,
        ],
    );
    const MIDDLE: ([f64; 8], [f64; 8]) = (
        [
            1.423_437_110_749_683_5,
            4.630_337_846_156_546,
            5.769_497_221_460_691,
            3.647_848_324_763_204_5,
            1.270_458_252_452_368_4,
            0.241_780_725_177_450_6,
            0.022_723_844_989_269_184,
            7.745_450_142_783_414e-4,
        ],
        [
            1.0,
            2.053_191_626_637_759,
            1.676_384_830_183_803_8,
            0.689_767_334_985_1,
            0.148_103_976_427_480_08,
            0.015_198_666_563_616_457,
            5.475_938_084_995_345e-4,
            1.050_750_071_644_416_9e-9,
        ],
    );
    const TAIL: ([f64; 8], [f64; 8]) = (
        [
            6.657_904_643_501_103,
            5.463_784_911_164_114,
            1.784_826_539_917_291_3,
            0.296_560_571_828_504_87,
            0.026_532_189_526_576_124,
            0.001_242_660_947_388_078_4,
            2.711_555_568_743_487_6e-5,
            2.010_334_399_292_288_1e-7,
        ],
        [
            1.0,
            0.599_832_206_555_888,
            0.136_929_880_922_735_8,
            0.014_875_361_290_850_615,
            7.868_691_311_456_133e-4,
            1.846_318_317_510_054_8e-5,
            1.421_511_758_316_446e-7,
            2.044_263_103_389_939_8e-15,
        ],
    );
    let ratio = |(above, below): ([f64; 8], [f64; 8]), at: f64| {
        let value = |factors: [f64; 8]| factors.iter().rev().fold(0.0, |sum, factor| sum * at + factor);
        value(above) / value(below)
    };
    let centred = p - 0.5;
    if centred.abs() <= 0.425 {
        return centred * ratio(CENTRE, 0.180_625 - centred * centred);
    }
    let depth = (-ln(if centred < 0.0 { p } else { 1.0 - p })).sqrt();
    let distance = if depth <= 5.0 { ratio(MIDDLE, depth - 1.6) } else { ratio(TAIL, depth - 5.0) };
    if centred < 0.0 { -distance } else { distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_platform() {
        for step in 1..20_000 {
            let x = step as f64 * 0.037;
            assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.0), "ln {x}");
            let y = step as f64 * 0.07 - 700.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-13, "exp {y}");
        }
        assert!((ln(1e-310) - (1e-310_f64).ln()).abs() < 1e-11);
        assert_eq!((exp(0.0), exp(-800.0), exp(800.0)), (1.0, 0.0, f64::INFINITY));
    }

    /// Quantiles of tables, and symmetry.
    #[test]
    fn normal_quantiles_are_those_of_the_tables() {
        let check = |p: f64, expected: f64| {
            assert!((normal_quantile(p) - expected).abs() < 1e-9 * expected.abs().max(1.0), "{p}");
            assert!((normal_quantile(1.0 - p) + expected).abs() < 1e-6 * expected.abs().max(1.0), "1 - {p}");
        };
        check(0.5, 0.0);
        check(0.975, 1.959_963_984_540_054);
        check(0.999, 3.090_232_306_167_813);
        check(1e-9, -5.997_807_015_007_687);
        check(0.25, -0.674_489_750_196_081_7);
    }
}
