#!/bin/sh
# Publishes the files of a directory to a directory that static pods mount, all at once:
#
#   publish.sh STAGING /etc/sidekey/vault
#
# As kubelet swaps a mounted Secret: the files go to a new directory beside the old one, a
# rename turns the link ..data to it, and each file is a link through ..data. Whoever reads
# sees the old files or the new ones, never some of each.
set -eu

if [ $# -ne 2 ] || [ ! -d "$1" ]; then
    echo "usage: publish.sh STAGING DIRECTORY: STAGING is a directory with the new files" >&2
    exit 64
fi
from=$1 to=$2 group=${SIDEKEY_GID:-65532}

umask 077
mkdir -p "$to"
chgrp "$group" "$to" && chmod 0750 "$to"
fresh=$(mktemp -d "$to/..$(date -u +%Y_%m_%d_%H_%M_%S).XXXXXX")
trap 'rm -rf "$fresh"' EXIT
cp "$from"/* "$fresh/"
chgrp -R "$group" "$fresh"
chmod 0640 "$fresh"/*
chmod 0750 "$fresh"
sync "$fresh"/* "$fresh"

old=$(readlink "$to/..data" || true)
ln -sfn "${fresh##*/}" "$to/..data_tmp"
mv -T "$to/..data_tmp" "$to/..data"
trap - EXIT

for file in "$fresh"/*; do
    name=${file##*/}
    [ -L "$to/$name" ] || ln -s "..data/$name" "$to/$name"
done
for link in "$to"/*; do
    [ -e "$link" ] || rm -f "$link"
done
[ -z "$old" ] || rm -rf "${to:?}/$old"
