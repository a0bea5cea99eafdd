//! Promise: any number of keys: five rotations in a row, nothing re-encrypted.

use crate::planes::shim_many_keys::in_a_row;

#[tokio::test]
async fn five_rotations_in_a_row_leave_the_data_of_six_keys_readable() {
    in_a_row("shim-six-keys", 6).await;
}
