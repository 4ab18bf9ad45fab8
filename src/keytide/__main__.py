"""`python -m keytide` runs the command `keytide`, if scripts are not on the PATH."""

from keytide_command import main

if __name__ == "__main__":
    main()
