#!/bin/sh
# Make the interpreters that the peers of our benchmarks run in: TARGET/modern and TARGET/petastorm.
#
#     sh benchmarks/peers/install.sh TARGET
#
# Versions are pinned, so that a run can be repeated. PYTHON names another interpreter to build with than python3.
# Where pip knows a CPU build of torch (PIP_FIND_LINKS, PIP_INDEX_URL) it takes that one.
set -eu
if [ $# -ne 1 ]; then
    echo "usage: sh benchmarks/peers/install.sh TARGET" >&2
    exit 2
fi
target=$1
python=${PYTHON:-python3}
torch=torch==2.13.0

# torch goes first and alone: petastorm's setuptools<70 clashes with torch's, so that no single command resolves both.
for name in modern petastorm; do
    "$python" -m venv "$target/$name"
    "$target/$name/bin/pip" install --quiet "$torch"
done

# torch is named again, else litdata's torchvision brings a newer one.
"$target/modern/bin/pip" install --quiet "$torch" \
    litdata==0.2.76 webdataset==1.0.2 datasets==5.2.0 pylance==14.0.2 pyarrow==26.0.1 numpy==2.4.6 pillow==13.0.0 simplejpeg==1.9.0
# The torchvision that litdata asks for is built for CUDA, and cannot be imported beside a CPU build of torch.
"$target/modern/bin/pip" uninstall --quiet --yes torchvision

# petastorm needs a pyarrow before 15 and a NumPy before 2.
"$target/petastorm/bin/pip" install --quiet \
    petastorm==0.13.1 pyarrow==14.0.2 'numpy<2' 'pandas<3' pyspark==3.5.9 opencv-python-headless==4.11.0.86
