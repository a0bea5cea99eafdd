//! Reasons of conditions that say why something is not so yet, though nobody need do anything about
//! it. HyperShift's are spelled as HyperShift spells them.

/// Pods are not as they should be yet.
pub(super) const ROLL_OUT: &str = "RollOutInProgress";
/// Not every replica has loaded what is published.
pub(super) const PUBLISHING: &str = "Publishing";
/// A rotation is under way, and nobody is waited for.
pub(super) const ROTATION: &str = "RotationInProgress";
/// Another rotation than the wanted one is finished first.
pub(super) const OTHER_ROTATION: &str = "RotationUnderWay";
/// Not every replica reads with the new key yet.
pub(super) const READ_ONLY: &str = "ReadOnlyRolloutInProgress";
/// Not every replica has heard that it writes with the new key.
pub(super) const PROMOTION: &str = "WritePromotionInProgress";
/// Not everybody announces the same key yet.
pub(super) const CONVERGENCE: &str = "ReEncryptionWaitingForKASConvergence";
/// What is stored is being rewritten.
pub(super) const RE_ENCRYPTION: &str = "ReEncryptionInProgress";

/// What a step of a rotation waits for: over when the next one begins.
pub(super) const WAITS: [&str; 4] = [ROLL_OUT, READ_ONLY, PROMOTION, CONVERGENCE];
/// All of them.
pub(super) const ON_THE_WAY: [&str; 8] = [
    ROLL_OUT,
    PUBLISHING,
    ROTATION,
    OTHER_ROTATION,
    READ_ONLY,
    PROMOTION,
    CONVERGENCE,
    RE_ENCRYPTION,
];
