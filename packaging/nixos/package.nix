# syngate from this tree, with its man pages and completions: pkgs.callPackage ./packaging/nixos/package.nix { }
{
  lib,
  stdenv,
  rustPlatform,
  installShellFiles,
}:

let
  root = ../..;
in
rustPlatform.buildRustPackage {
  pname = "syngate";
  version = (lib.importTOML (root + "/Cargo.toml")).workspace.package.version;

  src = lib.cleanSource root;
  cargoLock.lockFile = root + "/Cargo.lock";
  cargoBuildFlags = [
    "--package"
    "syngate"
  ];

  # The tests need network namespaces, HAProxy and nginx: `tests/run` runs them.
  doCheck = false;

  nativeBuildInputs = [ installShellFiles ];
  # The binary writes both itself, so it has to run on the machine that builds it.
  postInstall = lib.optionalString (stdenv.buildPlatform.canExecute stdenv.hostPlatform) ''
    $out/bin/syngate generate man man
    installManPage man/*.1
    installShellCompletion --cmd syngate \
      --bash <($out/bin/syngate generate completions bash) \
      --zsh <($out/bin/syngate generate completions zsh) \
      --fish <($out/bin/syngate generate completions fish)
  '';

  meta = {
    description = "A front TCP relay that never reloads: holds connections while its backend does";
    license = with lib.licenses; [
      asl20
      mit
    ];
    platforms = lib.platforms.linux;
    mainProgram = "syngate";
  };
}
